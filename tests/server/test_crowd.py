"""Calls that arrive at the same time share a put, and a call that is alone never waits."""

from __future__ import annotations

import asyncio

import pytest

from jobq.server.crowd import Crowd


async def test_a_call_that_is_alone_does_not_wait() -> None:
    crowd = Crowd()
    for _ in range(3):
        with crowd:
            step = crowd.gather()
            with pytest.raises(StopIteration):  # it returns without giving way to anybody
                step.send(None)


async def test_calls_of_one_moment_go_on_together() -> None:
    crowd = Crowd()
    order: list[str] = []

    async def call() -> None:
        with crowd:
            order.append("arrived")
            await asyncio.sleep(0)
            await crowd.gather()
            order.append("went on")

    await asyncio.gather(*(call() for _ in range(8)))
    assert order == ["arrived"] * 8 + ["went on"] * 8


async def test_calls_do_not_wait_for_one_that_never_comes() -> None:
    crowd = Crowd()
    with crowd, crowd:  # two calls are there, and one of them is already past this place
        await asyncio.wait_for(crowd.gather(), 10)


async def test_a_cancelled_call_holds_up_nobody() -> None:
    crowd = Crowd()

    async def call() -> None:
        with crowd:
            await asyncio.sleep(0)
            await crowd.gather()

    first, second, third = (asyncio.create_task(call()) for _ in range(3))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait_for(asyncio.gather(second, third), 10)
    assert first.cancelled() or first.done()


async def test_a_crowd_is_forgotten_when_it_is_over() -> None:
    crowd = Crowd()
    with crowd, crowd:
        await crowd.gather()
    crowd._window_ends = 0.0  # long ago
    with crowd:
        step = crowd.gather()
        with pytest.raises(StopIteration):
            step.send(None)
