"""Limits and rates: declared, changed at run time, and kept by workers."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from jobq import (
    Bucket,
    ConfigError,
    InvalidJob,
    KeyLimits,
    Queue,
    Rate,
    RateLimited,
    Retry,
    State,
    Worker,
    testing,
)
from jobq.testing import FakeClock, Sandbox


async def test_no_more_jobs_run_than_the_queue_allows(url: str) -> None:
    async with Queue("q", url, limit=2) as queue:
        running, most = 0, 0
        full = asyncio.Event()

        @queue.task
        async def work() -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            if running == 2:
                full.set()
            await full.wait()
            running -= 1

        jobs = await work.enqueue_many([()] * 12)
        async with Worker(queue, concurrency=10), Worker(queue, concurrency=10):
            for job in jobs:
                await job.wait(timeout=30)
        assert most == 2


async def test_what_is_declared_can_be_read_back(url: str) -> None:
    declared = Queue(
        "q",
        url,
        mode="keyed",
        limit=9,
        rate=Rate(100, per=60),
        key_limit=2,
        key_rate=Bucket(5, refill=0.5),
    )
    async with declared as queue:
        limits = await queue.limits()
        assert (limits.limit, limits.rate, limits.key_limit, limits.key_rate) == (
            9,
            Rate(100, per=60),
            2,
            Bucket(5, refill=0.5),
        )
        assert (limits.version, limits.changed, limits.keys) == (1, False, {})


async def test_reading_the_limits_of_an_unknown_queue_does_not_create_it(queue: Queue) -> None:
    assert (await queue.limits()).limit is None
    assert await (await queue._context.store()).queues() == []


async def test_another_limit_needs_a_higher_version(url: str) -> None:
    async with Queue("q", url, limit=2):
        with pytest.raises(ConfigError, match="raise limits_version to change them"):
            await Queue("q", url, limit=3).limits()
        with pytest.raises(ConfigError, match="raise limits_version to change them"):
            await Worker(Queue("q", url, limit=3)).run()
        async with Queue("q", url, limit=3, limits_version=2) as raised:
            assert (await raised.limits()).limit == 3
            async with Queue(
                "q", url, limit=2
            ) as older:  # during a deploy: the old code goes on with the new limit
                assert (await older.limits()).limit == 3


async def test_a_change_at_run_time_applies_until_a_higher_version_is_declared(url: str) -> None:
    async with Queue("q", url, limit=2, rate=Rate(5, per=1)) as queue:
        await queue.set_limits(limit=7)
        limits = await queue.limits()
        assert (limits.limit, limits.rate, limits.changed) == (7, Rate(5, per=1), True)
        await queue.set_limits(rate=None)
        assert ((await queue.limits()).limit, (await queue.limits()).rate) == (7, None)
        async with Queue("q", url, limit=2, rate=Rate(5, per=1)) as again:
            assert (await again.limits()).limit == 7
        await queue.reset_limits()
        assert ((await queue.limits()).limit, (await queue.limits()).changed) == (2, False)
        await queue.set_limits(limit=8)
        async with Queue("q", url, limit=4, limits_version=2) as raised:
            assert ((await raised.limits()).limit, (await raised.limits()).changed) == (4, False)


async def test_a_key_can_have_limits_of_its_own(url: str) -> None:
    async with Queue("q", url, mode="keyed", key_limit=1) as queue:
        await queue.set_limits(key="vip", key_limit=5)
        await queue.set_limits(key="vip", key_rate=Rate(10, per=1))
        assert (await queue.limits()).keys == {
            "vip": KeyLimits(key_limit=5, key_rate=Rate(10, per=1))
        }
        await queue.set_limits(key="vip", key_limit=None)
        assert (await queue.limits()).keys == {
            "vip": KeyLimits(key_limit=None, key_rate=Rate(10, per=1))
        }
        await queue.set_limits(key="vip", key_rate=None)
        assert (await queue.limits()).keys == {}
        await queue.set_limits(key="slow", key_rate=Rate(1, per=60))
        await queue.reset_limits(key="slow")
        assert (await queue.limits()).keys == {}


async def test_invalid_limits_are_refused(url: str) -> None:
    async with Queue("q", url, mode="plain") as queue:
        with pytest.raises(ConfigError, match="limit=0 is out of range"):
            await queue.set_limits(limit=0)
        with pytest.raises(ConfigError, match="rate=5 is neither a Rate nor a Bucket"):
            await queue.set_limits(rate=5)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match=r"set_limits\(\) without a limit"):
            await queue.set_limits()
        with pytest.raises(ConfigError, match="limit is a limit of the whole queue"):
            await queue.set_limits(limit=5, key="k")
        with pytest.raises(ConfigError, match="is plain: its jobs have no keys"):
            await queue.set_limits(key_limit=5, key="k")
        assert not (await queue.limits()).changed
    with pytest.raises(ConfigError, match="key_rate='fast'"):
        Queue("q", url, key_rate="fast")  # type: ignore[arg-type]


async def test_a_raised_limit_lets_jobs_start_at_once(url: str) -> None:
    async with Queue("q", url, limit=1) as queue:
        both = asyncio.Barrier(2)

        @queue.task
        async def meet() -> None:
            await both.wait()

        jobs = await meet.enqueue_many([(), ()])
        async with Worker(queue):
            await queue.set_limits(limit=2)
            for job in jobs:
                await job.wait(timeout=10)


async def test_a_rate_delays_starts_and_uses_no_attempt(jobs: Sandbox, clocked: Queue) -> None:
    @clocked.task
    async def work() -> None: ...

    made = await work.enqueue_many([()] * 5)
    await clocked.set_limits(rate=Rate(2, per=10))
    assert [await jobs.drain(), await jobs.drain()] == [2, 0]
    assert (await made[2].info()).attempt == 0
    jobs.clock.advance(10)
    assert await jobs.drain() == 2
    await clocked.set_limits(rate=None)
    assert await jobs.drain() == 1


async def test_a_bucket_loses_the_cost_of_each_job(jobs: Sandbox, clocked: Queue) -> None:
    order: list[int] = []

    @clocked.task
    async def work(cost: int) -> None:
        order.append(cost)

    await clocked.set_limits(rate=Bucket(10, refill=1))
    for cost in (8, 4, 1):
        await work.options(cost=cost).enqueue(cost)
    await jobs.drain()
    assert order == [8]
    jobs.clock.advance(2)
    await jobs.drain()
    assert order == [8, 4]
    jobs.clock.advance(1)
    await jobs.drain()
    assert order == [8, 4, 1]
    with pytest.raises(InvalidJob, match=r"costs 11, and the bucket .* holds at most 10"):
        await work.options(cost=11).enqueue(11)


async def test_a_rate_limited_job_returns_to_the_front_of_the_queue(
    jobs: Sandbox, clocked: Queue
) -> None:
    order: list[int] = []

    @clocked.task(retry=0)
    async def call(n: int) -> None:
        order.append(n)
        if order == [0]:
            raise RateLimited(60)

    made = await call.enqueue_many([(n,) for n in range(3)])
    assert await jobs.drain() == 1
    info = await made[0].info()
    assert (info.state, info.failures, info.stalls) == (State.WAITING, 0, 0)
    assert await jobs.drain(delayed=True) == 3
    assert order == [0, 0, 1, 2]


async def test_retries_count_in_the_rate(jobs: Sandbox, clocked: Queue) -> None:
    @clocked.task(retry=Retry(5, base=0))
    async def broken() -> None:
        raise ValueError("no")

    await clocked.set_limits(rate=Rate(2, per=60))
    job = await broken.enqueue()
    assert await jobs.drain() == 2
    assert (await job.info()).failures == 2


async def test_a_worker_wakes_by_itself_when_the_rate_allows_more(queue: Queue) -> None:
    @queue.task
    async def work() -> None: ...

    await queue.set_limits(rate=Rate(1, per=0.05))
    jobs = await work.enqueue_many([()] * 3)
    worker = Worker(queue)
    worker.settings = replace(worker.settings, poll_ms=60_000)  # it is not found by looking
    async with worker:
        for job in jobs:
            await job.wait(timeout=20)


def test_limits_have_a_blocking_api() -> None:
    with (
        testing.use(Queue("q", "memory://nowhere"), clock=FakeClock()) as jobs,
        jobs.queues[0].sync as queue,
    ):
        queue.set_limits(limit=3)
        assert queue.limits().limit == 3
        queue.reset_limits()
        assert queue.limits().limit is None


async def test_limits_of_keys_are_refused_for_a_plain_queue(url: str) -> None:
    declared: tuple[dict[str, Any], ...] = ({"key_limit": 2}, {"key_rate": Rate(1, per=1)})
    for limits in declared:
        with pytest.raises(ConfigError, match="is plain: its jobs have no keys"):
            Queue("q", url, mode="plain", **limits)
    async with Queue("q", url, mode="plain") as queue:
        with pytest.raises(ConfigError, match="is plain: its jobs have no keys"):
            await queue.set_limits(key_limit=2)
        await queue.set_limits(key_limit=None, limit=3)


def test_a_queue_has_a_bounded_number_of_partitions(url: str) -> None:
    with pytest.raises(ConfigError, match="partitions"):
        Queue("q", url, partitions=100_000)
