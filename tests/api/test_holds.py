"""Holds: set by an operator or a handler, shown, and released."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from jobq import ConfigError, InvalidJob, Queue, RateLimited, Worker, testing
from jobq.testing import FakeClock, Sandbox


async def test_a_hold_ends_by_itself(jobs: Sandbox, clocked: Queue) -> None:
    @clocked.task
    async def work() -> None: ...

    await work.enqueue()
    await clocked.hold(timedelta(minutes=1))
    until = jobs.clock.now() + timedelta(minutes=1)
    assert (await clocked.stats()).held_until == until
    assert (await clocked.limits()).held_until == until
    assert await jobs.drain() == 0
    jobs.clock.advance(60)
    assert (await clocked.stats()).held_until is None
    assert await jobs.drain() == 1


async def test_the_hold_of_a_rate_limited_handler_is_shown_and_can_be_released(
    jobs: Sandbox, clocked: Queue
) -> None:
    ran = 0

    @clocked.task
    async def call() -> None:
        nonlocal ran
        ran += 1
        if ran == 1:
            raise RateLimited(3600)

    await call.enqueue()
    assert await jobs.drain() == 1
    assert (await clocked.stats()).held_until == jobs.clock.now() + timedelta(hours=1)
    assert await clocked.release_hold()
    assert not await clocked.release_hold()
    assert await jobs.drain() == 1


async def test_a_hold_of_one_key_leaves_other_keys_alone(url: str) -> None:
    async with Queue("q", url, mode="keyed") as queue:
        done: list[str] = []

        @queue.task(key="tenant")
        async def work(tenant: str) -> None:
            done.append(tenant)

        await queue.hold(3600, key="a")
        assert list((await queue.limits()).held_keys) == ["a"]
        held, free = await work.enqueue("a"), await work.enqueue("b")
        async with Worker(queue):
            await free.wait(timeout=10)
            assert done == ["b"]
            assert await queue.release_hold("a")
            await held.wait(timeout=10)
        assert done == ["b", "a"]


@pytest.mark.parametrize("how", ["release", "resume", "reset"])
async def test_releasing_a_hold_wakes_a_sleeping_worker(url: str, how: str) -> None:
    async with Queue("q", url) as queue:

        @queue.task
        async def work() -> None: ...

        await queue.hold(3600)
        job = await work.enqueue()
        async with Worker(queue):
            ways: dict[str, Callable[[], Awaitable[object]]] = {
                "release": queue.release_hold,
                "resume": queue.resume,
                "reset": queue.reset_limits,
            }
            await ways[how]()
            await job.wait(timeout=10)
        assert (await queue.limits()).held_until is None


async def test_invalid_holds_are_refused(url: str) -> None:
    async with Queue("q", url, mode="plain") as queue:
        with pytest.raises(ConfigError, match="is plain, so its jobs have no keys"):
            await queue.hold(5, key="k")
        for seconds in (0, -1, float("nan"), "long"):
            with pytest.raises(InvalidJob, match="seconds"):
                await queue.hold(seconds)  # type: ignore[arg-type]
        with pytest.raises(InvalidJob, match="key"):
            await queue.hold(5, key="")
        assert (await queue.limits()).held_until is None


def test_holds_have_a_blocking_api() -> None:
    with (
        testing.use(Queue("q", "memory://nowhere", mode="keyed"), clock=FakeClock()) as jobs,
        jobs.queues[0].sync as queue,
    ):
        queue.hold(60)
        queue.hold(60, key="a")
        assert queue.stats().held_until == jobs.clock.now() + timedelta(minutes=1)
        assert queue.limits().held_keys == {"a": jobs.clock.now() + timedelta(minutes=1)}
        assert queue.release_hold()
        assert queue.release_hold("a")
        assert not queue.release_hold("a")
