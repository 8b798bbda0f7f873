"""A run that takes too long is interrupted, and settled even if it goes on."""

from __future__ import annotations

import asyncio
import threading

from jobq.core.control import Snooze
from jobq.core.policies import Retry
from jobq.core.records.states import State
from tests.waiting import takes

from .kit import Bench, eventually, soon

NO_RETRY = Retry(0)


async def test_an_async_run_past_its_timeout_is_interrupted_and_fails(bench: Bench) -> None:
    cleaned = []

    @bench.task(timeout_ms=50, retry=NO_RETRY)
    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append(True)

    id = await bench.add("work")
    async with bench.worker():
        record = await bench.ended(id)
    assert record.state is State.FAILED
    assert record.failure is not None
    assert (record.failure.reason, record.failures, cleaned) == ("timeout", 1, [True])


async def test_the_jobs_own_timeout_wins_over_the_tasks(bench: Bench) -> None:
    @bench.task(timeout_ms=20, retry=NO_RETRY)
    async def work() -> str:
        await takes(0.1)
        return "in time"

    longer = await bench.add("work", timeout_ms=60_000)
    without = await bench.add("work", timeout_ms=0)
    by_task = await bench.add("work")
    async with bench.worker():
        assert (await bench.ended(longer)).state is State.COMPLETED
        assert (await bench.ended(without)).state is State.COMPLETED
        assert (await bench.ended(by_task)).state is State.FAILED


async def test_what_a_handler_decides_when_interrupted_counts(bench: Bench) -> None:
    @bench.task(timeout_ms=20, retry=NO_RETRY)
    async def partly() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "partly"
        return ""

    @bench.task(timeout_ms=20, retry=NO_RETRY)
    async def later() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise Snooze(3600, saved={"at": 7}) from None

    first, second = await bench.add("partly"), await bench.add("later")
    async with bench.worker():
        assert (await bench.ended(first)).result == b'"partly"'
        await bench.all_in(State.DELAYED, 1)
    record = await bench.get(second)
    assert (record.failures, record.saved) == (0, b'{"at":7}')


async def test_a_cancellation_of_the_handlers_own_making_is_a_failure(bench: Bench) -> None:
    @bench.task(timeout_ms=60_000, retry=NO_RETRY)
    async def work() -> None:
        raise asyncio.CancelledError

    id = await bench.add("work")
    async with bench.worker():
        record = await bench.ended(id)
    assert record.failure is not None
    assert (record.state, record.failure.reason) == (State.FAILED, "error")


async def test_a_handler_that_ignores_its_interruption_is_settled_and_keeps_its_slot(
    bench: Bench,
) -> None:
    stubborn_may_end = asyncio.Event()
    ran = []

    @bench.task(timeout_ms=30, retry=NO_RETRY)
    async def stubborn() -> None:
        while not stubborn_may_end.is_set():
            try:
                await stubborn_may_end.wait()
            except asyncio.CancelledError:
                pass

    @bench.task
    async def other() -> None:
        ran.append(stubborn_may_end.is_set())

    id = await bench.add("stubborn")
    next_id = await bench.add("other")
    async with bench.worker(concurrency=1, settings={"grace_ms": 50}):
        record = await bench.ended(id)
        assert record.failure is not None
        assert record.failure.reason == "timeout"
        assert (await bench.get(next_id)).state is State.WAITING
        stubborn_may_end.set()
        await bench.ended(next_id)
    assert ran == [True]
    assert (await bench.kinds())["failed"] == 1


async def test_a_thread_past_its_timeout_is_settled_at_once_and_keeps_its_slot(
    bench: Bench,
) -> None:
    may_end, begun = threading.Event(), threading.Event()
    ran = []

    @bench.task(timeout_ms=500, retry=NO_RETRY)
    def slow() -> str:
        begun.set()
        may_end.wait(30)
        return "too late"

    @bench.task
    async def other() -> None:
        ran.append(may_end.is_set())

    id, next_id = await bench.add("slow"), await bench.add("other")
    async with bench.worker(concurrency=1, settings={"grace_ms": 600_000}):
        record = await bench.ended(id)
        assert begun.is_set()
        assert record.failure is not None
        assert (record.failure.reason, record.result) == ("timeout", None)
        assert (await bench.get(next_id)).state is State.WAITING
        may_end.set()
        await bench.ended(next_id)
        assert (await bench.get(id)).state is State.FAILED
    assert ran == [True]


async def test_a_timed_out_run_is_retried_by_its_policy(bench: Bench) -> None:
    runs = 0

    @bench.task(timeout_ms=30, retry=Retry(1, base=0))
    async def work() -> str:
        nonlocal runs
        runs += 1
        if runs == 1:
            await asyncio.Event().wait()
        return "second time"

    id = await bench.add("work")
    async with bench.worker():
        record = await bench.ended(id)
    assert (record.state, record.failures, record.attempt) == (State.COMPLETED, 1, 2)


async def test_a_run_that_ends_in_time_leaves_no_timer_behind(bench: Bench) -> None:
    seen = asyncio.Event()

    @bench.task(timeout_ms=40)
    async def quick() -> None: ...

    @bench.task
    async def watcher() -> None:
        await takes(0.1)
        seen.set()

    await bench.add("quick")
    id = await bench.add("watcher")
    async with bench.worker():
        await soon(seen)
        assert (await bench.ended(id)).state is State.COMPLETED
        await eventually(lambda: True)
    kinds = await bench.kinds()
    assert (kinds["completed"], kinds["failed"], kinds["retried"]) == (2, 0, 0)
