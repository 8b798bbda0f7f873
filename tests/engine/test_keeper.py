"""Leases are renewed where handlers cannot block it, and lost leases and cancels reach the run."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest

from jobq import current_job
from jobq.core.records.commands import Cancel
from jobq.core.records.jobs import JobKey, LeaseState
from jobq.core.records.states import State
from jobq.engine.keeper import Renewer
from jobq.engine.run import Run
from jobq.stores import open_store
from jobq.stores.base import Store
from tests.waiting import blocks, takes

from .kit import Bench, Proxy, eventually, soon, steal


class Thief:
    """Another worker, in another thread with its own event loop, that takes whatever it can get."""

    def __init__(self, bench: Bench) -> None:
        self.taken: list[str] = []
        self.rounds = 0
        self._bench = bench
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._live()))

    def __enter__(self) -> Thief:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    async def _live(self) -> None:
        async with self._bench.another_handle() as store:
            while not self._stop.is_set():
                self.taken += [lease.id for lease in (await steal(store, self._bench.qname)).leases]
                self.rounds += 1
                await takes(0.02)


async def test_a_handler_that_blocks_the_event_loop_keeps_its_lease(
    bench: Bench, store: Store
) -> None:
    thief = Thief(bench)

    @bench.task
    async def work() -> str:
        # This loop is blocked for two leases, while another worker looks for expired ones.
        with thief:
            blocks(3.0)
        return "still mine"

    id = await bench.add("work")
    async with bench.worker(lease=1.5):
        record = await bench.ended(id)
    assert (record.state, record.attempt, record.stalls) == (State.COMPLETED, 1, 0)
    assert thief.rounds > 0
    assert thief.taken == []


async def test_a_handler_that_computes_without_a_pause_keeps_its_lease(
    bench: Bench, store: Store
) -> None:
    thief = Thief(bench)

    @bench.task
    async def work() -> int:
        end, sum_ = time.monotonic() + 3.0, 0
        with thief:
            while time.monotonic() < end:
                sum_ += 1
        return sum_

    id = await bench.add("work")
    async with bench.worker(lease=1.5):
        record = await bench.ended(id)
    assert (record.state, record.attempt, record.stalls) == (State.COMPLETED, 1, 0)
    assert thief.rounds > 0
    assert thief.taken == []


@pytest.fixture
async def clocked(url: str) -> AsyncIterator[tuple[Bench, list[int]]]:
    """A queue whose store has a clock that the test moves."""
    now = [1_700_000_000_000]

    def handle() -> Store:
        return open_store(url, clock=lambda: now[0])

    async with handle() as store:
        yield Bench(store, open=handle), now


async def test_a_run_whose_lease_was_lost_is_interrupted_and_stores_nothing(
    clocked: tuple[Bench, list[int]], caplog: pytest.LogCaptureFixture
) -> None:
    bench, now = clocked
    interrupted = asyncio.Event()
    begun = asyncio.Event()

    @bench.task
    async def work() -> str:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            assert current_job().cancelled
            interrupted.set()
        return "never"

    id = await bench.add("work")
    store = await bench.store()
    async with bench.worker(lease=3, concurrency=1):
        await soon(begun)
        now[0] += 10_000
        (lease,) = (await steal(store, bench.qname)).leases
        await soon(interrupted)
        record = await bench.get(id)
        assert (record.state, record.worker, record.attempt, record.stalls) == (
            State.ACTIVE,
            "thief",
            2,
            1,
        )
        assert lease.id == id
    assert f"job {id} (work) of queue work (attempt 1) lost its lease" in caplog.text
    assert (await bench.get(id)).worker == "thief"


async def test_a_cancelled_job_is_interrupted_promptly_and_ends_cancelled(bench: Bench) -> None:
    begun, asked = asyncio.Event(), []

    @bench.task
    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            asked.append(current_job().cancelled)
            raise

    id = await bench.add("work")
    store = await bench.store()
    async with bench.worker(lease=3600):  # no renewal is going to tell
        await soon(begun)
        assert await store.alter([Cancel(job=JobKey(bench.qname, id))]) == ["done"]
        record = await bench.ended(id)
    assert record.state is State.CANCELLED
    assert asked == [True]


async def test_a_cancel_whose_signal_was_lost_is_heard_with_the_renewal(
    bench: Bench, line: Proxy
) -> None:
    begun = asyncio.Event()
    line.lose = lambda method: method == "listen"

    @bench.task
    async def work() -> None:
        begun.set()
        await asyncio.Event().wait()

    id = await bench.add("work")
    store = await bench.store()
    async with bench.through(line).worker(lease=0.6):
        await soon(begun)
        await store.alter([Cancel(job=JobKey(bench.qname, id))])
        assert (await bench.ended(id)).state is State.CANCELLED


async def test_a_run_that_succeeds_although_it_was_cancelled_stays_completed(bench: Bench) -> None:
    begun = asyncio.Event()

    @bench.task
    async def work() -> str:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "finished anyway"
        return ""

    id = await bench.add("work")
    async with bench.worker():
        await soon(begun)
        await (await bench.store()).alter([Cancel(job=JobKey(bench.qname, id))])
        record = await bench.ended(id)
    assert (record.state, record.result) == (State.COMPLETED, b'"finished anyway"')


async def test_a_plain_function_sees_that_it_was_cancelled(bench: Bench) -> None:
    begun = threading.Event()

    @bench.task
    def work() -> None:
        begun.set()
        job = current_job()
        while not job.cancelled:
            blocks(0.005)
        raise RuntimeError("stopped half way")

    id = await bench.add("work")
    async with bench.worker():
        await eventually(begun.is_set)
        await (await bench.store()).alter([Cancel(job=JobKey(bench.qname, id))])
        record = await bench.ended(id)
    assert (record.state, record.attempt) == (State.CANCELLED, 1)


async def test_a_job_cancelled_while_its_lease_is_on_the_way_does_not_start(
    bench: Bench, line: Proxy
) -> None:
    ran = False
    store = await bench.store()
    id = await bench.add("work")

    async def after(method: str, answer: object) -> None:
        if method == "settle" and getattr(answer, "leases", None):
            line.after = None
            heard = len(line.of("beat"))
            await store.alter([Cancel(job=JobKey(bench.qname, id))])
            await asyncio.sleep(
                0
            )  # the signal goes through the keeper's thread, ahead of this answer
            await eventually(lambda: len(line.of("beat")) > heard)

    @bench.task
    async def work() -> None:
        nonlocal ran
        ran = True

    line.after = after
    async with bench.through(line).worker(settings={"beat_ms": 20}):
        assert (await bench.ended(id)).state in (State.CANCELLED, State.COMPLETED)
        record = await bench.get(id)
    assert ran == (record.state is State.COMPLETED)


async def test_a_long_job_is_renewed_and_a_short_one_is_not(bench: Bench, line: Proxy) -> None:
    gate = asyncio.Event()

    @bench.task
    async def short(n: int) -> None: ...

    @bench.task
    async def long() -> None:
        await gate.wait()

    id = await bench.add("long")
    async with bench.through(line).worker(lease=3):
        await eventually(lambda: line.of("extend"))
        await bench.add_many("short", 50)
        await bench.all_in(State.COMPLETED, 50)
        gate.set()
        assert (await bench.ended(id)).stalls == 0
    assert {ref.id for args, _ in line.of("extend") for ref in args[0]} == {id}


async def test_the_renewals_go_on_after_an_outage(bench: Bench, line: Proxy) -> None:
    gate = asyncio.Event()

    @bench.task
    async def work() -> None:
        await gate.wait()

    id = await bench.add("work")
    async with bench.through(line).worker(lease=3):
        await eventually(lambda: line.of("extend"))
        line.down = True
        refused = line.refused
        await eventually(lambda: line.refused > refused + 2)
        line.down = False
        renewed = len(line.of("extend"))
        await eventually(lambda: len(line.of("extend")) > renewed)
        gate.set()
        record = await bench.ended(id)
    assert (record.state, record.stalls) == (State.COMPLETED, 0)


async def test_leases_are_renewed_until_timeout_and_grace_and_no_longer(
    bench: Bench, store: Store, line: Proxy
) -> None:
    await bench.add_many("work", 3)
    endless, over, young = (
        Run(lease, None, time.monotonic() - 100)  # type: ignore[arg-type]
        for lease in (await steal(store, bench.qname, limit=3)).leases
    )
    over.until = time.monotonic() - 1
    young.since = time.monotonic()
    reports: list[tuple[Run, LeaseState]] = []
    renewer = Renewer(
        line,  # type: ignore[arg-type]
        {endless, over, young},
        lease_ms=60_000,
        report=lambda *what: reports.append(what),
    )
    assert 0 < await renewer.tick() <= 20
    assert [args[0] for args, _ in line.of("extend")] == [[endless.ref]]
    assert reports == []
    await store.obliterate(bench.qname, force=True)
    await renewer.tick()
    assert reports == [(endless, "lost")]


async def test_the_worker_is_listed_while_it_works_and_gone_when_it_stopped(
    bench: Bench, store: Store
) -> None:
    name = f"w-{uuid4().hex[:6]}"

    async def listed() -> list[str]:
        return [worker.name for worker in await store.workers(bench.qname)]

    async with bench.worker(name=name, concurrency=3):
        await eventually(listed)
        (record,) = await store.workers(bench.qname)
        assert (record.name, record.concurrency, record.queues) == (name, 3, (bench.qname,))
    assert await listed() == []
