"""A worker's concurrency is changed while it runs, by its program or by an operator."""

from __future__ import annotations

import asyncio

import pytest

from jobq import ConfigError
from jobq.core.records.workers import asked_concurrency, concurrency_request
from jobq.engine.slots import Bell, Slots
from jobq.stores.base import Store
from tests.engine.kit import Bench, Gate, eventually
from tests.engine.test_names import listed


async def test_more_slots_are_used_at_once(bench: Bench) -> None:
    gate = Gate()

    @bench.task
    async def work() -> None:
        await gate()

    ids = [await bench.add("work") for _ in range(6)]
    async with bench.worker(concurrency=2) as worker:
        await eventually(lambda: gate.inside == 2)
        worker.concurrency = 5
        await eventually(lambda: gate.inside == 5)
        assert worker.concurrency == 5
        gate.opened.set()
        for id in ids:
            await bench.ended(id)
    assert gate.most == 5


async def test_fewer_slots_let_running_jobs_finish_and_then_hold(bench: Bench) -> None:
    running: dict[int, asyncio.Event] = {}
    most_later = 0
    lowered = False

    @bench.task
    async def work(n: int) -> None:
        nonlocal most_later
        running[n] = asyncio.Event()
        if lowered:
            most_later = max(most_later, len(running))
        await running[n].wait()
        del running[n]

    ids = [await bench.add("work", n) for n in range(12)]
    async with bench.worker(concurrency=6) as worker:
        await eventually(lambda: len(running) == 6)
        worker.concurrency, lowered = 2, True
        for _ in ids:
            await eventually(lambda: any(not event.is_set() for event in running.values()))
            next(event for event in running.values() if not event.is_set()).set()
            await asyncio.sleep(0)
        for id in ids:
            await bench.ended(id)
    assert most_later == 2


async def test_an_operator_changes_it_and_the_next_heartbeat_shows_it(
    bench: Bench, store: Store
) -> None:
    gate = Gate()

    @bench.task
    async def work() -> None:
        await gate()

    for _ in range(4):
        await bench.add("work")
    async with bench.worker(name="w", concurrency=1, settings={"beat_ms": 20}) as worker:
        await eventually(lambda: gate.inside == 1)
        assert await store.ask_worker("w", concurrency_request(3))
        await eventually(lambda: gate.inside == 3)

        async def shown() -> bool:
            return (await listed(store, bench)).concurrency == 3

        await eventually(shown)
        assert worker.concurrency == 3
        gate.opened.set()


async def test_a_request_that_the_worker_does_not_know_is_ignored(
    bench: Bench, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    async with bench.worker(name="w", settings={"beat_ms": 20}) as worker:
        await store.ask_worker("w", "dance")  # type: ignore[arg-type]
        await eventually(lambda: "ignores the unknown request 'dance'" in caplog.text)
        assert worker.running


@pytest.mark.parametrize("value", [0, -1, 100_001, True, "3", None])
async def test_a_wrong_concurrency_is_refused_and_changes_nothing(
    bench: Bench, value: object
) -> None:
    async with bench.worker(concurrency=7) as worker:
        with pytest.raises(ConfigError, match="concurrency"):
            worker.concurrency = value  # type: ignore[assignment]
        assert worker.concurrency == 7


async def test_a_worker_says_whether_it_runs_and_whether_it_is_paused(bench: Bench) -> None:
    async with bench.worker() as worker:
        assert (worker.running, worker.paused) == (True, False)
        worker.pause()
        assert (worker.running, worker.paused) == (True, True)
        worker.resume()
        assert not worker.paused
    assert not worker.running


def test_a_lower_total_takes_slots_as_they_come_free() -> None:
    slots, bell = Slots(5), Bell()
    assert slots.take(bell, 5) == 5
    slots.resize(2)
    assert slots.take(bell, 5) == 0
    slots.give(3)
    assert slots.take(bell, 5) == 0
    slots.give(1)
    assert slots.take(bell, 5) == 1
    slots.resize(4)
    assert slots.take(bell, 5) == 2


@pytest.mark.parametrize(
    "request_", ["drain", "concurrency=", "concurrency=0", "concurrency=-1", "concurrency=²", "9"]
)
def test_other_requests_ask_for_no_concurrency(request_: str) -> None:
    assert asked_concurrency(request_) is None
    assert asked_concurrency(concurrency_request(20)) == 20
