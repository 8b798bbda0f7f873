"""Middleware around runs: order, results, errors, and everything that can end a run."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import pytest
from msgspec import Meta

import jobq
from jobq import (
    CallNext,
    ConfigError,
    CurrentJob,
    JobFailed,
    Queue,
    Reject,
    Snooze,
    State,
    Worker,
    current_job,
    testing,
)

Trace = list[str]


def told(trace: Trace, name: str) -> Any:
    """A middleware that records when it begins, and how the rest ended."""

    async def middleware(job: CurrentJob, call_next: CallNext) -> object:
        trace.append(f"{name} begins {job.name}")
        try:
            result = await call_next(job)
        except BaseException as error:
            trace.append(f"{name} sees {type(error).__name__}")
            raise
        trace.append(f"{name} ends")
        return result

    return middleware


@asynccontextmanager
async def sandbox(url: str, *middleware: Any) -> AsyncIterator[tuple[testing.Sandbox, Queue]]:
    clock = testing.FakeClock(datetime(2026, 3, 2, 12, tzinfo=UTC))
    queue = Queue("api", url, middleware=middleware)
    async with testing.Sandbox((queue,), clock, url) as jobs, queue:
        yield jobs, queue


async def test_the_workers_middleware_is_outside_of_the_queues_and_the_first_is_outermost(
    url: str,
) -> None:
    trace: Trace = []
    async with Queue("api", url, middleware=[told(trace, "c"), told(trace, "d")]) as queue:

        @queue.task
        async def work() -> str:
            trace.append("work")
            return "done"

        async with Worker(queue, middleware=[told(trace, "a"), told(trace, "b")]):
            assert await work.call() == "done"
    begins = [f"{name} begins work" for name in "abcd"]
    assert trace == [*begins, "work", *(f"{name} ends" for name in "dcba")]


async def test_a_plain_function_is_wrapped_alike_and_sees_what_the_middleware_set(url: str) -> None:
    user: contextvars.ContextVar[str] = contextvars.ContextVar("user")

    async def known(job: CurrentJob, call_next: CallNext) -> object:
        assert current_job().id == job.id
        user.set(f"user of {job.id}")
        return await call_next()

    async with sandbox(url, known) as (jobs, queue):

        @queue.task
        def plain() -> str:
            return user.get()

        @queue.task
        async def coroutine() -> str:
            return user.get()

        for task in (plain, coroutine):
            job = await task.options(id=task.name).enqueue()
            await jobs.drain()
            assert await job.result() == f"user of {task.name}"


async def test_a_middleware_may_change_the_result_or_return_one_without_the_handler(
    url: str,
) -> None:
    async def doubled(job: CurrentJob, call_next: CallNext) -> object:
        return "cached" if job.id == "cached" else 2 * await call_next(job)

    async with sandbox(url, doubled) as (jobs, queue):

        @queue.task
        async def work(n: int) -> int:
            return n

        first = await work.enqueue(4)
        second = await queue.task_by_name("work", id="cached").enqueue(1)
        await jobs.drain()
        assert (await first.result(), await second.result()) == (8, "cached")


async def test_an_error_of_a_middleware_fails_the_run_and_says_whose_it_is(url: str) -> None:
    async def refuses(job: CurrentJob, call_next: CallNext) -> object:
        raise PermissionError("not today")

    async with sandbox(url, refuses) as (jobs, queue):

        @queue.task(retry=0)
        async def work() -> None: ...

        job = await work.enqueue()
        await jobs.drain()
        with pytest.raises(JobFailed) as caught:
            await job.result()
    failure = caught.value.failure
    assert (failure.type, failure.message) == ("PermissionError", "not today")
    assert "raised by the middleware around task work" in (failure.traceback or "")


async def test_the_handlers_own_error_passes_through_unchanged(url: str) -> None:
    trace: Trace = []
    async with sandbox(url, told(trace, "a")) as (jobs, queue):

        @queue.task(retry=0)
        async def work() -> None:
            raise LookupError("gone")

        job = await work.enqueue()
        await jobs.drain()
        failure = (await job.info()).failure
    assert failure is not None
    assert (failure.type, failure.message) == ("LookupError", "gone")
    assert "middleware around" not in (failure.traceback or "")
    assert str(Path(jobq.__file__).parent) not in (failure.traceback or "")
    assert trace == ["a begins work", "a sees LookupError"]


async def test_arguments_that_do_not_fit_are_an_error_that_the_middleware_sees(url: str) -> None:
    trace: Trace = []
    async with sandbox(url, told(trace, "a")) as (jobs, queue):

        @queue.task(retry=0)
        async def work(at: datetime) -> None: ...

        await queue.task_by_name("work").enqueue("not a time")
        await jobs.drain()
    assert trace == ["a begins work", "a sees UnfitArguments"]


async def test_snooze_reject_and_retry_pass_through_and_each_run_is_wrapped(url: str) -> None:
    trace: Trace = []
    async with sandbox(url, told(trace, "a")) as (jobs, queue):

        @queue.task(retry=1)
        async def work() -> str:
            job = current_job()
            if job.saved is None:
                raise Snooze(60, saved="once")
            if not job.failures:
                raise OSError("again")
            raise Reject("enough")

        job = await work.enqueue()
        await jobs.drain(delayed=True)
        info = await job.info()
    assert (info.state, info.attempt, info.failures) == (State.FAILED, 3, 2)
    assert [line for line in trace if "sees" in line] == [
        "a sees Snooze",
        "a sees OSError",
        "a sees Reject",
    ]


@pytest.mark.parametrize("swallow", [False, True])
async def test_waits_for_signals_and_children_pass_through_even_a_bare_except(
    url: str, swallow: bool
) -> None:
    async def cautious(job: CurrentJob, call_next: CallNext) -> object:
        try:
            return await call_next(job)
        except BaseException:
            if swallow:
                return "swallowed"
            raise

    async with sandbox(url, cautious) as (jobs, queue):

        @queue.task
        async def child(n: int) -> int:
            return n

        @queue.task
        async def parent() -> list[Any]:
            job = current_job()
            await job.add(child, 1)
            results = await job.wait_for_children()
            return [*results.values(), await job.wait_for_signal("go")]

        job = await parent.enqueue()
        await jobs.drain()
        assert await job.state() is State.BLOCKED
        await job.signal("go", "now")
        await jobs.drain()
        assert await job.result() == [1, "now"]


async def test_a_cancelled_run_is_cancelled_in_the_middleware_which_cleans_up(url: str) -> None:
    started, cleaned = asyncio.Event(), asyncio.Event()

    async def tidy(job: CurrentJob, call_next: CallNext) -> object:
        try:
            return await call_next(job)
        finally:
            assert job.cancelled
            await asyncio.sleep(0)  # a clean-up may wait
            cleaned.set()

    async with Queue("api", url, middleware=[tidy]) as queue:

        @queue.task
        async def work() -> None:
            started.set()
            await asyncio.Event().wait()

        async with Worker(queue):
            job = await work.enqueue()
            await asyncio.wait_for(started.wait(), 20)
            await job.cancel()
            info = await job.wait(timeout=20)
    assert (info.state, cleaned.is_set()) == (State.CANCELLED, True)


@pytest.mark.parametrize("before", [True, False])
async def test_a_cancel_reaches_middleware_that_waits_before_or_after_a_plain_function(
    url: str, before: bool
) -> None:
    waiting = asyncio.Event()
    ran: list[str] = []

    async def slow(job: CurrentJob, call_next: CallNext) -> object:
        if not before:
            await call_next(job)
        waiting.set()
        await asyncio.Event().wait()
        return await call_next(job)

    async with Queue("api", url, middleware=[slow]) as queue:

        @queue.task
        def work() -> None:
            ran.append("work")

        async with Worker(queue):
            job = await work.enqueue()
            await asyncio.wait_for(waiting.wait(), 20)
            await job.cancel()
            assert (await job.wait(timeout=20)).state is State.CANCELLED
    assert ran == ([] if before else ["work"])


async def test_a_timeout_counts_the_middleware_too(url: str) -> None:
    async def slow(job: CurrentJob, call_next: CallNext) -> object:
        await asyncio.Event().wait()
        return await call_next(job)

    async with Queue("api", url, middleware=[slow]) as queue:

        @queue.task(timeout=0.05, retry=0)
        def work() -> None: ...

        async with Worker(queue):
            info = await (await work.enqueue()).wait(timeout=20)
    assert info.failure is not None
    assert info.failure.reason == "timeout"


async def test_a_batch_is_one_call_with_all_its_jobs(url: str) -> None:
    seen: list[tuple[str, ...]] = []

    async def watches(job: CurrentJob, call_next: CallNext) -> object:
        seen.append(tuple(each.id for each in job.batch))
        results: Any = await call_next(job)
        return [result * 10 for result in results]

    async with sandbox(url, watches) as (jobs, queue):

        @queue.batch_task(size=3, retry=0)
        async def work(numbers: list[Annotated[int, Meta(lt=9)]]) -> list[int]:
            return numbers

        @queue.task
        async def single() -> list[int]:
            return [1]

        handles = [await work.options(id=f"j{n}").enqueue(n) for n in (0, 1, 9)]
        await jobs.drain(concurrency=3)
        assert [await job.result() for job in handles[:2]] == [0, 10]
        misfit = await handles[2].info()
        assert misfit.state is State.DELAYED
        assert "do not fit" in (misfit.deferred or "")
        await single.enqueue()
        await jobs.drain()
    assert seen == [("j0", "j1"), ()]  # a job whose item does not fit is not in it


async def test_calling_the_handler_twice_is_refused(url: str) -> None:
    async def twice(job: CurrentJob, call_next: CallNext) -> object:
        await call_next(job)
        return await call_next(job)

    async with sandbox(url, twice) as (jobs, queue):

        @queue.task(retry=0)
        async def work() -> None: ...

        job = await work.enqueue()
        await jobs.drain()
        failure = (await job.info()).failure
    assert failure is not None
    assert "call_next was called twice" in failure.message


def plain(job: CurrentJob, call_next: CallNext) -> object:
    return call_next(job)


@pytest.mark.parametrize("wrong", [[plain], [3], plain, "abc"])
def test_a_middleware_that_is_no_async_function_is_refused(wrong: Any) -> None:
    for make in (
        lambda: Queue(middleware=wrong),
        lambda: Queue(enqueue_middleware=wrong),
        lambda: Worker(Queue(), middleware=wrong),
    ):
        with pytest.raises(ConfigError, match="middleware"):
            make()


async def test_an_object_with_an_async_call_is_a_middleware(url: str) -> None:
    class Counts:
        def __init__(self) -> None:
            self.runs = 0

        async def __call__(self, job: CurrentJob, call_next: Callable[..., Awaitable[Any]]) -> Any:
            self.runs += 1
            return await call_next(job)

    counts = Counts()
    async with sandbox(url, counts) as (jobs, queue):

        @queue.task
        async def work() -> None: ...

        await work.enqueue_many([()] * 3)
        await jobs.drain()
    assert counts.runs == 3
