"""`JobInfo.options`: the options that apply to a job."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from jobq import ConfigError, Permissions, Queue, Retry, Unique, Worker


async def test_options_of_the_call_apply(queue: Queue) -> None:
    task = queue.task_by_name("work")
    given = task.options(
        retry=Retry(5, base=2, factor=3, cap=60, jitter=0.5),
        timeout=90,
        max_stalls=1,
        ttl=10,
        result_ttl=3600,
        cost=2,
        unique=Unique(period=30, mode="throttle"),
        priority=7,
        lifo=True,
        delay=5,
        on_child_failure="ignore",
    )
    options = (await (await given.enqueue(1)).info()).options
    assert options.unique is not None
    assert (options.unique.mode, options.unique.period) == ("throttle", timedelta(seconds=30))
    bare = (await (await task.enqueue(2)).info()).options
    assert options == replace(
        bare,
        retry=Retry(5, base=2, factor=3, cap=60, jitter=0.5),
        timeout=timedelta(seconds=90),
        max_stalls=1,
        ttl=timedelta(seconds=10),
        result_ttl=timedelta(hours=1),
        cost=2,
        unique=options.unique,
        priority=7,
        lifo=True,
        delay=timedelta(seconds=5),
        on_child_failure="ignore",
    )


async def test_the_worker_decides_options_that_the_call_does_not_give(queue: Queue) -> None:
    options = (await (await queue.task_by_name("elsewhere").enqueue()).info()).options
    assert (options.retry, options.timeout, options.max_stalls) == ("worker", "worker", "worker")
    assert (options.ttl, options.result_ttl, options.cost, options.unique, options.delay) == (
        None,
        None,
        1,
        None,
        None,
    )


async def test_a_task_of_this_process_shows_its_policy(queue: Queue) -> None:
    @queue.task(retry=Retry(8, give_up_on=KeyError), timeout=30, max_stalls=5)
    async def work() -> None: ...

    @queue.task
    async def plain() -> None: ...

    own = (await (await work.enqueue()).info()).options
    assert (own.retry, own.timeout, own.max_stalls) == (
        Retry(8, give_up_on=KeyError),
        timedelta(seconds=30),
        5,
    )
    (found,) = [info async for info in queue.find(name="work")]
    assert found.options == own
    called = (await (await work.options(retry=1, timeout=None).enqueue()).info()).options
    assert (called.retry, called.timeout, called.max_stalls) == (Retry(1), None, 5)
    default = (await (await plain.enqueue()).info()).options
    assert (default.retry, default.timeout, default.max_stalls) == (Retry(), None, 3)


async def test_a_due_time_and_listed_delays_are_shown(queue: Queue) -> None:
    at = datetime(2040, 1, 1, tzinfo=UTC)
    options = (
        await (
            await queue.task_by_name("work", at=at, retry=Retry(2, delays=[1, 60])).enqueue()
        ).info()
    ).options
    assert (options.at, options.delay, options.retry) == (at, None, Retry(2, delays=[1, 60]))


@pytest.mark.parametrize("executor", ["command", None])
async def test_a_worker_refuses_a_task_that_it_could_only_run_unrestricted(
    url: str, executor: str | None
) -> None:
    queue = Queue("q", url)
    options: Any = {"permissions": Permissions()} if executor is None else {"executor": executor}

    @queue.task(**options)
    async def render() -> None: ...

    with pytest.raises(ConfigError, match=r"task render of queue q: .*(permissions|executor)"):
        async with Worker(queue):
            pass
    assert await queue.workers() == []
    await queue.aclose()
