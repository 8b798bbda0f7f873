"""on_start, on_success, on_failure, on_stall, on_idle and on_error."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import pytest

from jobq import (
    ConfigError,
    CurrentJob,
    JobFailed,
    Queue,
    Retry,
    Snooze,
    StoreUnavailable,
    Worker,
    current_job,
    on_failure,
    on_start,
    on_success,
    testing,
)
from tests.waiting import until

Trace = list[tuple[Any, ...]]


@asynccontextmanager
async def sandbox(url: str, *middleware: Any) -> AsyncIterator[tuple[testing.Sandbox, Queue]]:
    clock = testing.FakeClock(datetime(2026, 3, 2, 12, tzinfo=UTC))
    queue = Queue("api", url, middleware=middleware)
    async with testing.Sandbox((queue,), clock, url) as jobs, queue:
        yield jobs, queue


async def test_start_success_and_failure_are_told_with_the_job(url: str) -> None:
    trace: Trace = []

    def started(job: CurrentJob) -> None:
        trace.append(("start", job.attempt))

    async def succeeded(job: CurrentJob, result: Any) -> None:
        trace.append(("success", result))

    def failed(job: CurrentJob, error: BaseException) -> None:
        trace.append(("failure", type(error).__name__))

    def gone(job: CurrentJob, error: BaseException) -> None:
        trace.append(("final", type(error).__name__))

    hooks = on_start(started), on_success(succeeded), on_failure(failed)
    async with sandbox(url, *hooks, on_failure(gone, final=True)) as (jobs, queue):

        @queue.task(retry=Retry(1))
        async def work(ends: str) -> str:
            if ends == "well":
                return "done"
            if current_job().saved is None:
                raise Snooze(1, saved=1)
            raise OSError

        await work.enqueue("well")
        await jobs.drain()
        assert trace == [("start", 1), ("success", "done")]
        trace.clear()
        await work.enqueue("badly")
        await jobs.drain(delayed=True)
    assert trace == [
        ("start", 1),
        ("start", 2),
        ("failure", "OSError"),
        ("start", 3),
        ("final", "OSError"),
        ("failure", "OSError"),
    ]


async def test_a_batch_is_told_job_by_job(url: str) -> None:
    trace: Trace = []

    def started(job: CurrentJob) -> None:
        trace.append(("start", job.id))

    def succeeded(job: CurrentJob, result: Any) -> None:
        trace.append(("success", job.id, result))

    def failed(job: CurrentJob, error: BaseException) -> None:
        trace.append(("failure", job.id, str(error)))

    hooks = on_start(started), on_success(succeeded), on_failure(failed)
    async with sandbox(url, *hooks) as (jobs, queue):

        @queue.batch_task(size=2, retry=0)
        async def work(items: list[int]) -> list[Any]:
            return [10, ValueError("bad")]

        for n in range(2):
            await work.options(id=f"j{n}").enqueue(n)
        await jobs.drain(concurrency=2)
    assert sorted(trace) == [
        ("failure", "j1", "bad"),
        ("start", "j0"),
        ("start", "j1"),
        ("success", "j0", 10),
    ]


async def test_a_timeout_is_told_as_a_timeout_error_and_a_cancel_is_not_told(url: str) -> None:
    told: list[BaseException] = []
    started = asyncio.Event()

    def failed(job: CurrentJob, error: BaseException) -> None:
        told.append(error)

    async with Queue("api", url, middleware=[on_failure(failed, final=True)]) as queue:

        @queue.task(retry=0)
        async def work() -> None:
            started.set()
            await asyncio.Event().wait()

        @queue.task(retry=0)
        async def awaits_a_cancelled_task() -> None:
            raise asyncio.CancelledError

        async with Worker(queue):
            await (await work.options(timeout=0.05).enqueue()).wait(timeout=20)
            started.clear()
            job = await work.enqueue()
            await asyncio.wait_for(started.wait(), 20)
            await job.cancel()
            await job.wait(timeout=20)
            await (await awaits_a_cancelled_task.enqueue()).wait(timeout=20)
    assert [type(error) for error in told] == [TimeoutError, asyncio.CancelledError]


async def test_a_timeout_of_a_handler_that_does_not_stop_is_told(url: str) -> None:
    told: list[BaseException] = []
    timed_out = asyncio.Event()

    def failed(job: CurrentJob, error: BaseException) -> None:
        told.append(error)

    async with Queue("api", url, middleware=[on_failure(failed, final=True)]) as queue:

        @queue.task(retry=0, timeout=0.05, grace=0)
        async def work() -> str:
            while not timed_out.is_set():
                try:
                    await timed_out.wait()
                except asyncio.CancelledError:
                    continue
            return "too late"

        async with Worker(queue):
            info = await (await work.enqueue()).wait(timeout=20)
            timed_out.set()
            await until(lambda: told, "on_failure")
    assert info.state == "failed"
    assert [type(error) for error in told] == [TimeoutError]


async def test_an_error_of_on_success_is_the_runs_and_one_of_on_failure_is_logged(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    def refuses(job: CurrentJob, result: Any) -> None:
        raise ValueError("not good enough")

    def breaks(job: CurrentJob, error: BaseException) -> None:
        raise RuntimeError("the pager is down")

    async with sandbox(url, on_failure(breaks), on_success(refuses)) as (jobs, queue):

        @queue.task(retry=0)
        async def work() -> None: ...

        job = await work.enqueue()
        await jobs.drain()
        with pytest.raises(JobFailed, match="not good enough"):
            await job.result()
    assert "the pager is down" in caplog.text


async def test_a_worker_tells_when_it_has_nothing_to_do_once_each_time(queue: Queue) -> None:
    idle = asyncio.Event()
    times: list[int] = []

    async def rests() -> None:
        times.append(1)
        idle.set()

    @queue.task
    async def work() -> None: ...

    async with Worker(queue, on_idle=rests):
        await asyncio.wait_for(idle.wait(), 20)
        idle.clear()
        # A delayed job wakes the worker, which has still nothing to do.
        await (await work.options(delay=0.2).enqueue()).wait(timeout=20)
        await asyncio.wait_for(idle.wait(), 20)
    assert len(times) == 2


async def test_a_worker_tells_of_a_lost_lease(queue: Queue) -> None:
    stalled: list[str] = []
    started = asyncio.Event()

    @queue.task
    async def work() -> None:
        started.set()
        await asyncio.Event().wait()

    async with Worker(queue, lease=0.3, on_stall=lambda job: stalled.append(job.id)):
        job = await work.enqueue()
        await asyncio.wait_for(started.wait(), 20)
        store = await queue._context.store()
        await store.obliterate(queue.qname, force=True)
        await until(lambda: stalled, "the lost lease to be told")
    assert stalled == [job.id]


async def test_a_worker_tells_of_an_unavailable_store_and_goes_on_if_the_hook_fails(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    errors: list[BaseException] = []

    def told(error: BaseException) -> None:
        errors.append(error)
        raise RuntimeError("the pager is down")

    @queue.task
    async def work() -> str:
        return "done"

    async with Worker(queue, on_error=told) as worker:
        store = worker._stations[0]._store
        settle = store.settle

        async def unavailable(*args: Any, **kwargs: Any) -> Any:
            monkeypatch.setattr(store, "settle", settle)
            raise StoreUnavailable("gone for a moment")

        monkeypatch.setattr(store, "settle", unavailable)
        assert await work.call() == "done"
    assert [str(error) for error in errors] == ["gone for a moment"]
    assert "on_error of the worker raised an error" in caplog.text


@pytest.mark.parametrize("option", ["on_stall", "on_idle", "on_error"])
def test_a_hook_that_is_no_function_is_refused(option: str) -> None:
    wrong: Any = {option: 3}
    with pytest.raises(ConfigError, match=f"{option}=3 is not a function"):
        Worker(Queue(), **wrong)
    not_callable: Any = 3
    with pytest.raises(ConfigError, match="on_failure"):
        on_failure(not_callable)
