"""One handler call for several jobs: how batches form, and that each job has its own outcome."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from jobq.core.policies import Retry
from jobq.core.records.commands import Cancel
from jobq.core.records.jobs import JobKey, RetryData
from jobq.core.records.states import State
from jobq.engine.handler import BatchSize
from jobq.stores.base import Store

from .kit import Bench, Proxy, eventually, soon

LONG = 3_600_000


class Collector:
    """A batch handler that records its calls, and waits until the test releases it."""

    def __init__(self, bench: Bench, size: int, window_ms: int = 0, **options: Any) -> None:
        self.calls: list[list[int]] = []
        self.begun = asyncio.Event()
        self.go = asyncio.Event()
        self.go.set()
        self.interrupted = False

        async def work(items: list[int]) -> list[Any]:
            self.calls.append(items)
            self.begun.set()
            try:
                await self.go.wait()
            except asyncio.CancelledError:
                self.interrupted = True
                raise
            return [ValueError(f"{item} is odd") if item % 2 else item for item in items]

        bench.task(work, batch=BatchSize(size, window_ms), **options)


async def test_jobs_that_come_together_share_a_call_of_at_most_their_size(bench: Bench) -> None:
    work = Collector(bench, 10, retry=Retry(0))
    await bench.add_many("work", 25)
    async with bench.worker(concurrency=100):
        await bench.all_in(State.COMPLETED, 13)
        await bench.all_in(State.FAILED, 12)
    assert [len(call) for call in work.calls] == [10, 10, 5]
    assert sorted(item for call in work.calls for item in call) == list(range(25))


async def test_each_job_of_a_batch_ends_for_itself(bench: Bench) -> None:
    Collector(bench, 10, retry=Retry(1, base=0))
    ids = await bench.add_many("work", 4)
    async with bench.worker():
        good, bad = await bench.ended(ids[2]), await bench.ended(ids[3])
    assert (good.state, good.result, good.failures) == (State.COMPLETED, b"2", 0)
    assert (bad.state, bad.failures, bad.attempt) == (State.FAILED, 2, 2)
    assert bad.failure is not None
    assert bad.failure.message == "3 is odd"


async def test_a_batch_that_waits_for_more_begins_when_it_is_full(bench: Bench) -> None:
    work = Collector(bench, 3, LONG)
    async with bench.worker():
        ids = [await bench.add("work", 0), await bench.add("work", 2)]
        await bench.all_in(State.ACTIVE, 2)
        assert not work.calls
        ids.append(await bench.add("work", 4))
        for id in ids:
            await bench.ended(id)
    assert work.calls == [[0, 2, 4]]


async def test_a_batch_that_waits_for_more_begins_when_its_time_is_over(bench: Bench) -> None:
    work = Collector(bench, 3, 20)
    async with bench.worker():
        await bench.ended(await bench.add("work", 0))
    assert work.calls == [[0]]


async def test_a_batch_does_not_wait_when_no_more_can_come(bench: Bench) -> None:
    work = Collector(bench, 50, LONG, retry=Retry(0))
    await bench.add_many("work", 4)
    async with bench.worker(concurrency=2):
        await eventually(lambda: len(work.calls) == 2)
    assert [len(call) for call in work.calls] == [2, 2]


async def test_other_jobs_run_while_a_batch_waits_for_more(bench: Bench) -> None:
    work = Collector(bench, 50, LONG)

    @bench.task
    async def other() -> str:
        return "done"

    async with bench.worker(concurrency=3):
        await bench.add("work", 0)
        await bench.all_in(State.ACTIVE, 1)
        for _ in range(5):
            assert (await bench.ended(await bench.add("other"))).state is State.COMPLETED
        assert not work.calls


async def test_batches_of_two_tasks_do_not_mix(bench: Bench) -> None:
    work, seen = Collector(bench, 10), []

    async def more(items: list[int]) -> list[int]:
        seen.append(items)
        return items

    bench.task(more, batch=BatchSize(10))
    for n in range(3):
        await bench.add("work", 2 * n)
        await bench.add("more", n)
    async with bench.worker():
        await bench.all_in(State.COMPLETED, 6)
    assert (work.calls, seen) == ([[0, 2, 4]], [[0, 1, 2]])


# ── failing ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda items: 1 / 0, "division by zero"),
        (lambda items: items[:-1], "returned 1 results for 2 jobs"),
        (lambda items: None, "returned NoneType"),
        (lambda items: dict(enumerate(items)), "returned dict"),
    ],
)
async def test_what_is_no_answer_for_each_fails_all(
    bench: Bench, answer: Callable[[Any], Any], said: str
) -> None:
    async def work(items: list[int]) -> Any:
        return answer(items)

    bench.task(work, batch=BatchSize(10), retry=Retry(0))
    ids = await bench.add_many("work", 2)
    async with bench.worker():
        for id in ids:
            record = await bench.ended(id)
            assert record.failure is not None
            assert said in record.failure.message


async def test_an_item_that_cannot_be_bound_or_a_result_that_cannot_be_encoded_fails_alone(
    bench: Bench,
) -> None:
    async def work(items: list[int]) -> list[Any]:
        return [object() if item == 1 else item for item in items]

    bench.task(work, batch=BatchSize(10), retry=Retry(0))
    ids = await bench.add_many("work", 3)
    bad = (await bench._store.put([bench.spec("work", 1, 2)]))[
        0
    ].id  # two arguments: no single item
    async with bench.worker():
        states = [(await bench.ended(id)).state for id in (*ids, bad)]
    assert states == [State.COMPLETED, State.FAILED, State.COMPLETED, State.FAILED]


# ── stopping ──────────────────────────────────────────────────────────────────────────────────────


async def test_a_timeout_ends_the_call_and_fails_all(bench: Bench) -> None:
    work = Collector(bench, 10, retry=Retry(0), timeout_ms=30)
    work.go.clear()
    ids = await bench.add_many("work", 2)
    async with bench.worker():
        for id in ids:
            record = await bench.ended(id)
            assert record.failure is not None
            assert record.failure.reason == "timeout"
    assert work.interrupted


async def test_a_job_with_a_shorter_timeout_of_its_own_ends_alone(bench: Bench) -> None:
    work = Collector(bench, 10, retry=Retry(0))
    work.go.clear()
    hasty = await bench.add("work", 0, timeout_ms=20)
    other = await bench.add("work", 2)
    async with bench.worker(settings={"grace_ms": 20}):
        record = await bench.ended(hasty)
        assert record.failure is not None
        assert record.failure.reason == "timeout"
        work.go.set()
        assert (await bench.ended(other)).state is State.COMPLETED
    assert not work.interrupted


async def test_cancelling_one_job_of_a_call_leaves_the_others_to_it(
    bench: Bench, store: Store
) -> None:
    work = Collector(bench, 10, retry=Retry(0))
    work.go.clear()
    odd, even = [await bench.add("work", n) for n in (1, 2)]
    async with bench.worker() as worker:
        await soon(work.begun)
        assert await store.alter([Cancel(job=JobKey(bench.qname, odd))]) == ["done"]
        await eventually(lambda: any(run.cancelled for run in worker._stations[0].runner.held))
        work.go.set()
        assert (await bench.ended(odd)).state is State.CANCELLED
        assert (await bench.ended(even)).state is State.COMPLETED
    assert not work.interrupted


async def test_a_call_that_nobody_wants_any_more_is_interrupted(bench: Bench, store: Store) -> None:
    work = Collector(bench, 10)
    work.go.clear()
    ids = await bench.add_many("work", 2)
    async with bench.worker():
        await soon(work.begun)
        await store.alter([Cancel(job=JobKey(bench.qname, id)) for id in ids])
        for id in ids:
            assert (await bench.ended(id)).state is State.CANCELLED
    assert work.interrupted


async def test_a_job_cancelled_while_its_batch_waits_for_more_is_not_in_it(
    bench: Bench, store: Store
) -> None:
    work = Collector(bench, 2, LONG)
    async with bench.worker():
        unwanted = await bench.add("work", 0)
        await bench.all_in(State.ACTIVE, 1)
        await store.alter([Cancel(job=JobKey(bench.qname, unwanted))])
        assert (await bench.ended(unwanted)).state is State.CANCELLED
        for id in [await bench.add("work", n) for n in (2, 4)]:
            await bench.ended(id)
    assert work.calls == [[2, 4]]


async def test_a_stopping_worker_runs_the_jobs_that_have_gathered_and_releases_none(
    bench: Bench,
) -> None:
    work = Collector(bench, 10, LONG)
    id = await bench.add("work", 0)
    async with bench.worker() as worker:
        await bench.all_in(State.ACTIVE, 1)
        await worker.stop(drain=60)
    assert work.calls == [[0]]
    assert (await bench.get(id)).state is State.COMPLETED


async def test_a_batch_that_does_not_end_in_time_is_released_whole(bench: Bench) -> None:
    work = Collector(bench, 10)
    work.go.clear()
    ids = await bench.add_many("work", 3)
    async with bench.worker() as worker:
        await soon(work.begun)
        await worker.stop(drain=0)
    assert work.interrupted
    for id in ids:
        record = await bench.get(id)
        assert (record.state, record.failures, record.stalls) == (State.WAITING, 0, 0)


async def test_a_lost_lease_costs_the_others_nothing(bench: Bench, line: Proxy) -> None:
    work = Collector(bench, 10)
    work.go.clear()
    lost, other = await bench.add("work", 0), await bench.add("work", 2)
    worker = bench.through(line).worker()
    async with worker:
        await soon(work.begun)
        runner = worker._stations[0].runner
        run = next(run for run in runner.held if run.lease.id == lost)
        runner.interrupts.lease_reported(run, "lost")  # what the keeper says when it hears so
        work.go.set()
        assert (await bench.ended(other)).state is State.COMPLETED
        assert (
            await bench.get(lost)
        ).state is State.ACTIVE  # nothing was settled under a lease that is another's
    assert not work.interrupted


async def test_a_thread_can_take_batches_too(bench: Bench) -> None:
    threads: list[str] = []

    def work(items: list[int]) -> list[int]:
        threads.append(threading.current_thread().name)
        return [item + 1 for item in items]

    bench.task(work, batch=BatchSize(10))
    ids = await bench.add_many("work", 3)
    async with bench.worker():
        assert [(await bench.ended(id)).result for id in ids] == [b"1", b"2", b"3"]
    assert len(threads) == 1
    assert threads[0] != threading.current_thread().name


async def test_retries_of_a_batch_join_later_batches(bench: Bench) -> None:
    seen: list[list[int]] = []

    async def work(items: list[int]) -> list[Any]:
        seen.append(items)
        return [ValueError("again") if len(seen) == 1 and item == 1 else item for item in items]

    bench.task(work, batch=BatchSize(10))
    first = await bench.add("work", 1, retry=RetryData(max_retries=1, base_ms=0))
    await bench.add("work", 2)
    async with bench.worker():
        assert (await bench.ended(first)).failures == 1
    assert seen == [[1, 2], [1]]


async def test_leases_of_a_long_call_and_of_a_gathering_batch_are_kept(
    bench: Bench, line: Proxy
) -> None:
    work = Collector(bench, 3, LONG)
    work.go.clear()
    ids = await bench.add_many("work", 4)  # three run, one waits for more

    def renewed() -> set[str]:
        return {ref.id for args, _ in line.of("extend") for ref in args[0]}

    async with bench.through(line).worker(lease=0.3):
        await soon(work.begun)
        await eventually(lambda: renewed() == set(ids))
        work.go.set()
