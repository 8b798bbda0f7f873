"""Keyed queues: order and fairness by key, and one mode that every process must agree on."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict

import pytest

from jobq import ConfigError, InvalidJob, Queue, RateLimited, State, Worker, current_job, testing


async def test_the_key_is_a_parameter_of_the_task(queue: Queue) -> None:
    @queue.task(key="tenant")
    async def charge(invoice: int, tenant: str = "acme") -> str | None:
        return current_job().key

    jobs = [
        await charge.enqueue(1),
        await charge.enqueue(2, "globex"),
        await charge.enqueue(3, tenant="initech"),
    ]
    assert [(await job.info()).key for job in jobs] == ["acme", "globex", "initech"]
    async with Worker(queue):
        assert [await job.result(timeout=10) for job in jobs] == ["acme", "globex", "initech"]
    assert [job.id async for job in queue.find(key="globex")] == [jobs[1].id]


async def test_a_call_may_give_its_key(queue: Queue) -> None:
    @queue.task(key="tenant")
    async def charge(tenant: str) -> None: ...

    job = await charge.options(key="vip").enqueue("acme")
    assert (await job.info()).key == "vip"
    other = await queue.task_by_name("elsewhere", key="k").enqueue()
    assert (await other.info()).key == "k"


async def test_an_invalid_key_is_refused(queue: Queue) -> None:
    @queue.task(key="tenant")
    async def charge(tenant: object) -> None: ...

    with pytest.raises(InvalidJob, match=r"key=1\.5"):
        await charge.enqueue(1.5)
    with pytest.raises(InvalidJob, match="no such parameter"):
        queue.task(key="tenent")(lambda tenant: None)
    assert charge.bind(7)._spec.key == "7"


async def test_jobs_of_a_key_run_in_strict_order_at_any_concurrency(queue: Queue) -> None:
    seen: dict[str, list[int]] = defaultdict(list)
    at_once: Counter[str] = Counter()
    most: Counter[str] = Counter()

    @queue.task(key="key")
    async def step(key: str, n: int) -> None:
        at_once[key] += 1
        most[key] = max(most[key], at_once[key])
        await asyncio.sleep(0)
        seen[key].append(n)
        at_once[key] -= 1

    jobs = await step.enqueue_many([(key, n) for n in range(20) for key in "abc"])
    async with Worker(queue, concurrency=50), Worker(queue, concurrency=50):
        for job in jobs:
            await job.wait(timeout=30)
    assert seen == {key: list(range(20)) for key in "abc"}
    assert most == {"a": 1, "b": 1, "c": 1}


async def test_a_key_with_many_jobs_does_not_delay_another_key(
    jobs: testing.Sandbox, clocked: Queue
) -> None:
    order: list[str] = []

    @clocked.task(key="key")
    async def step(key: str) -> None:
        order.append(key)

    await step.enqueue_many([("busy",)] * 50)
    await step.enqueue("small")
    await jobs.drain()
    assert "small" in order[:2]


async def test_as_many_jobs_of_a_key_run_as_key_limit_allows(url: str) -> None:
    async with Queue("q", url, mode="keyed", key_limit=3) as queue:
        running, most = 0, 0
        full = asyncio.Event()

        @queue.task(key="key")
        async def step(key: str) -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            if running == 3:
                full.set()
            await full.wait()
            running -= 1

        jobs = await step.enqueue_many([("k",)] * 12)
        async with Worker(queue):
            for job in jobs:
                await job.wait(timeout=30)
        assert most == 3


async def test_an_unset_mode_is_adopted_and_another_is_refused(url: str) -> None:
    async with Queue("q", url, mode="keyed"):
        async with Queue("q", url) as adopts:
            with pytest.raises(ConfigError, match=r"is keyed, and job .* no key"):
                await adopts.task_by_name("nobody").enqueue()
            await adopts.task_by_name("nobody").options(key="k").enqueue()
        differs = Queue("q", url, mode="plain")
        with pytest.raises(ConfigError, match="is keyed in the store and plain in this program"):
            await differs.task_by_name("nobody").enqueue()
        with pytest.raises(ConfigError, match="is keyed in the store and plain in this program"):
            await Worker(differs).run()
        assert (await adopts.stats()).mode == "keyed"
        await adopts.aclose()


async def test_the_first_job_fixes_an_unset_mode(queue: Queue) -> None:
    await queue.task_by_name("nobody").enqueue()
    assert (await queue.stats()).mode == "plain"
    with pytest.raises(ConfigError, match=r"is plain, and job .* has the key 'k'"):
        await queue.task_by_name("nobody", key="k").enqueue()
    assert (await queue.counts())[State.WAITING] == 1


async def test_a_refused_job_does_not_fail_jobs_enqueued_at_the_same_time(queue: Queue) -> None:
    plain, keyed = queue.task_by_name("nobody"), queue.task_by_name("nobody", key="k")
    await plain.enqueue()
    results = await asyncio.gather(
        *(task.enqueue() for task in (plain, keyed, plain, keyed, plain)), return_exceptions=True
    )
    assert [isinstance(result, ConfigError) for result in results] == [
        False,
        True,
        False,
        True,
        False,
    ]
    assert (await queue.counts())[State.WAITING] == 4


async def test_a_rate_limited_job_holds_its_key_and_no_other(
    jobs: testing.Sandbox, clocked: Queue
) -> None:
    order: list[str] = []
    limited = True

    @clocked.task(key="tenant", retry=0)
    async def call(tenant: str, n: int) -> None:
        order.append(f"{tenant}{n}")
        if tenant == "a" and limited:
            raise RateLimited(30)

    made = await call.enqueue_many([(tenant, n) for n in (1, 2) for tenant in "ab"])
    assert await jobs.drain() == 3
    assert order == ["a1", "b1", "b2"]
    limited = False
    jobs.clock.advance(29)
    assert await jobs.drain() == 0
    jobs.clock.advance(1)
    assert await jobs.drain() == 2
    assert order[3:] == ["a1", "a2"]
    info = await made[0].info()
    assert (info.state, info.failures, info.stalls, info.attempt) == (State.COMPLETED, 0, 0, 2)


async def test_a_retry_with_a_delay_does_not_hold_its_key(
    jobs: testing.Sandbox, clocked: Queue
) -> None:
    order: list[str] = []

    @clocked.task(key="key", retry=1)
    async def step(key: str, name: str) -> None:
        order.append(name)
        if name == "first" and current_job().attempt == 1:
            raise ValueError("again")

    await step.enqueue_many([("k", "first"), ("k", "second")])
    await jobs.drain(delayed=True)
    assert order == ["first", "second", "first"]
