"""Calls that arrive at the same time share a put, and a call that is alone never waits."""

from __future__ import annotations

import asyncio

import pytest

from jobq.server.jobs import Coalescer


async def test_a_call_that_is_alone_does_not_wait() -> None:
    coalescer = Coalescer()
    for _ in range(3):
        with coalescer:
            step = coalescer.gather()
            with pytest.raises(StopIteration):  # it returns without giving way to anybody
                step.send(None)


async def test_calls_of_one_moment_go_on_together() -> None:
    coalescer = Coalescer()
    order: list[str] = []

    async def call() -> None:
        with coalescer:
            order.append("arrived")
            await asyncio.sleep(0)
            await coalescer.gather()
            order.append("went on")

    await asyncio.gather(*(call() for _ in range(8)))
    assert order == ["arrived"] * 8 + ["went on"] * 8


async def test_calls_do_not_wait_for_one_that_never_comes() -> None:
    coalescer = Coalescer()
    with coalescer, coalescer:  # two calls are there, and one of them is already past this place
        await asyncio.wait_for(coalescer.gather(), 10)


async def test_a_cancelled_call_holds_up_nobody() -> None:
    coalescer = Coalescer()

    async def call() -> None:
        with coalescer:
            await asyncio.sleep(0)
            await coalescer.gather()

    first, second, third = (asyncio.create_task(call()) for _ in range(3))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait_for(asyncio.gather(second, third), 10)
    assert first.cancelled() or first.done()


async def test_calls_that_were_gathered_are_forgotten_when_they_are_over() -> None:
    coalescer = Coalescer()
    with coalescer, coalescer:
        await coalescer.gather()
    coalescer._window_ends = 0.0  # long ago
    with coalescer:
        step = coalescer.gather()
        with pytest.raises(StopIteration):
            step.send(None)
