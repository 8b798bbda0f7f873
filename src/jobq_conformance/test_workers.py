"""Workers that announce themselves, requests for them, leadership, and per-minute metrics."""

from __future__ import annotations

import asyncio

from jobq.core.records.commands import Cancel
from jobq.core.records.states import State
from jobq.core.records.workers import Beat, WorkerRecord, concurrency_request
from jobq.stores.base import Store
from jobq_conformance.kit import (
    BEGINNING,
    DAY,
    MINUTE,
    SECOND,
    Desk,
    FakeClock,
    complete,
    fail,
    fresh_queue,
    retry,
)
from jobq_conformance.roles import needs

pytestmark = needs("presence", "reads")


def worker(q: Desk, name: str, **fields: int | bool) -> WorkerRecord:
    # The tenant makes the name unique to this test.
    return WorkerRecord(
        name=f"{name}-{q.queue.tenant}",
        host="here",
        pid=7,
        queues=(q.queue,),
        concurrency=10,
        started_ms=q.clock.now_ms,
        seen_ms=q.clock.now_ms,
        **fields,  # type: ignore[arg-type]
    )


async def test_a_beat_tells_how_large_the_fleet_is(q: Desk) -> None:
    for n in range(1, 4):
        assert await q.store.beat(worker(q, f"bee {n}"), ttl_ms=n * 10 * SECOND) == Beat(None, n)
    q.clock.advance(15 * SECOND)
    await q.tick()
    assert await q.store.beat(worker(q, "bee 3"), ttl_ms=10 * SECOND) == Beat(None, 2)
    await q.store.retire(worker(q, "bee 2").name)
    assert await q.store.beat(worker(q, "bee 3"), ttl_ms=10 * SECOND) == Beat(None, 1)


async def test_a_worker_that_beats_is_listed(q_twice: tuple[Desk, Desk]) -> None:
    first, second = q_twice
    record = worker(first, "bee", active=3)
    answer = await first.store.beat(record, ttl_ms=10 * SECOND)
    assert answer.request is None
    assert answer.workers >= 1
    assert await second.store.workers(second.queue) == [record]
    assert record in await second.store.workers()
    assert (await second.store.stats(second.queue)).workers == 1


async def test_a_worker_is_listed_as_it_last_said_it_was(q: Desk) -> None:
    await q.store.beat(worker(q, "bee", active=3), ttl_ms=10 * SECOND)
    latest = worker(q, "bee", active=5, paused=True)
    await q.store.beat(latest, ttl_ms=10 * SECOND)
    assert await q.store.workers(q.queue) == [latest]


async def test_a_silent_worker_is_listed_no_more(q: Desk) -> None:
    await q.store.beat(worker(q, "bee"), ttl_ms=10 * SECOND)
    await q.store.beat(worker(q, "wasp"), ttl_ms=60 * SECOND)
    q.clock.advance(11 * SECOND)
    assert [w.name.split("-")[0] for w in await q.store.workers(q.queue)] == ["wasp"]
    assert (await q.store.stats(q.queue)).workers == 1


async def test_a_retired_worker_is_listed_no_more(q: Desk) -> None:
    record = worker(q, "bee")
    await q.store.beat(record, ttl_ms=10 * SECOND)
    await q.store.retire(record.name)
    assert await q.store.workers(q.queue) == []
    await q.store.retire(record.name)


async def test_workers_of_other_queues_are_not_listed(q: Desk) -> None:
    beside = q.beside("other")
    await q.store.beat(worker(beside, "bee"), ttl_ms=10 * SECOND)
    assert await q.store.workers(q.queue) == []


async def test_the_leases_of_a_retired_worker_expire_by_themselves(q: Desk) -> None:
    record = worker(q, "bee")
    await q.store.beat(record, ttl_ms=10 * SECOND)
    await q.put("a")
    await q.take(record.name, lease_ms=SECOND)
    await q.store.retire(record.name)
    assert await q.state("a") is State.ACTIVE
    q.clock.advance(2 * SECOND)
    assert await q.claim_ids() == ["a"]


async def test_the_next_beat_returns_the_request(q_twice: tuple[Desk, Desk]) -> None:
    first, second = q_twice
    record = worker(first, "bee")
    await first.store.beat(record, ttl_ms=10 * SECOND)
    assert await second.store.ask_worker(record.name, "drain")
    assert (await first.store.beat(record, ttl_ms=10 * SECOND)).request == "drain"
    assert await second.store.ask_worker(record.name, "shutdown")
    assert (await first.store.beat(record, ttl_ms=10 * SECOND)).request == "shutdown"
    assert await second.store.ask_worker(record.name, concurrency_request(20))
    assert (await first.store.beat(record, ttl_ms=10 * SECOND)).request == "concurrency=20"


async def test_nothing_can_be_asked_of_a_worker_that_is_not_there(q: Desk) -> None:
    assert not await q.store.ask_worker("nobody", "drain")
    record = worker(q, "bee")
    await q.store.beat(record, ttl_ms=10 * SECOND)
    q.clock.advance(11 * SECOND)
    assert not await q.store.ask_worker(record.name, "drain")


async def test_a_request_does_not_outlive_the_worker_it_was_for(q: Desk) -> None:
    record = worker(q, "bee")
    await q.store.beat(record, ttl_ms=10 * SECOND)
    await q.store.ask_worker(record.name, "shutdown")
    await q.store.retire(record.name)
    assert (await q.store.beat(record, ttl_ms=10 * SECOND)).request is None


async def test_ticks_remove_workers_that_are_gone_however_many_there_are(q: Desk) -> None:
    fleet = [worker(q, f"bee {n}") for n in range(1_200)]
    for start in range(0, len(fleet), 100):
        some = fleet[start : start + 100]
        await asyncio.gather(*(q.store.beat(each, ttl_ms=10 * SECOND) for each in some))
    q.clock.advance(15 * SECOND)
    for _ in range(6):
        await q.store.tick()
    assert await q.store.beat(worker(q, "last"), ttl_ms=10 * SECOND) == Beat(None, 1)


# ── lead ──────────────────────────────────────────────────────────────────────────────────────────


async def test_an_office_is_held_by_one_at_a_time(
    two_handles: tuple[Store, Store], clock: FakeClock
) -> None:
    first, second = two_handles
    name = fresh_queue().tenant  # leadership has no tenant: a name that no other test uses
    assert await first.lead(name, who="a", ttl_ms=10 * SECOND)
    assert not await second.lead(name, who="b", ttl_ms=10 * SECOND)
    assert await second.lead("other name", who="b", ttl_ms=10 * SECOND)
    clock.advance(9 * SECOND)
    assert await first.lead(name, who="a", ttl_ms=10 * SECOND)
    clock.advance(9 * SECOND)
    assert not await second.lead(name, who="b", ttl_ms=10 * SECOND)


async def test_an_office_not_renewed_goes_to_the_next_who_asks(
    two_handles: tuple[Store, Store], clock: FakeClock
) -> None:
    first, second = two_handles
    name = fresh_queue().tenant  # leadership has no tenant: a name that no other test uses
    assert await first.lead(name, who="a", ttl_ms=10 * SECOND)
    clock.advance(11 * SECOND)
    assert await second.lead(name, who="b", ttl_ms=10 * SECOND)
    assert not await first.lead(name, who="a", ttl_ms=10 * SECOND)


# ── metrics ───────────────────────────────────────────────────────────────────────────────────────


async def test_metrics_sum_up_each_minute(q: Desk) -> None:
    await q.put("a", "b", "c", "d")
    q.clock.advance(2 * SECOND)
    a, b, c = await q.claim(3)
    q.clock.advance(3 * SECOND)
    await q.settle(complete(a), fail(b), retry(c, MINUTE))
    await q.alter(Cancel(job=q.key("d")))
    (minute,) = await q.store.metrics(q.queue)
    assert minute.minute_ms == BEGINNING
    assert (minute.accepted, minute.started, minute.completed, minute.failed) == (4, 3, 1, 1)
    assert (minute.cancelled, minute.retried, minute.stalled) == (1, 1, 0)
    assert (minute.wait_ms, minute.run_ms) == (3 * 2 * SECOND, 3 * 3 * SECOND)


async def test_metrics_come_oldest_first_with_empty_minutes_left_out(q: Desk) -> None:
    await q.run("a")
    q.clock.advance(3 * MINUTE)
    await q.run("b")
    minutes = await q.store.metrics(q.queue)
    assert [m.minute_ms for m in minutes] == [BEGINNING, BEGINNING + 3 * MINUTE]
    assert [m.completed for m in minutes] == [1, 1]
    assert [m.minute_ms for m in await q.store.metrics(q.queue, minutes=2)] == [
        BEGINNING + 3 * MINUTE
    ]


async def test_a_stall_is_counted(q: Desk) -> None:
    await q.put("a")
    await q.take(lease_ms=SECOND)
    q.clock.advance(2 * SECOND)
    await q.tick()
    assert [m.stalled for m in await q.store.metrics(q.queue)] == [1]


async def test_a_day_of_minutes_is_kept(q: Desk) -> None:
    await q.run("a")
    q.clock.advance(DAY - 2 * MINUTE)
    await q.tick()
    await q.run("b")
    assert len(await q.store.metrics(q.queue, minutes=24 * 60)) == 2
    q.clock.advance(2 * DAY)
    assert await q.store.metrics(q.queue, minutes=24 * 60) == []


async def test_a_queue_where_nothing_happened_has_no_metrics(q: Desk) -> None:
    assert await q.store.metrics(q.queue) == []
