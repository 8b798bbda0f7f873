"""One incarnation at a time owns a worker's name, and receives the requests of operators."""

from __future__ import annotations

import pytest

from jobq.core.records.workers import Beat, WorkerRecord, WorkerRequest
from jobq_conformance.kit import SECOND, Desk

TTL = 10 * SECOND


def worker(q: Desk, incarnation: str, *, draining: bool = False) -> WorkerRecord:
    # The tenant makes the name unique to this test.
    return WorkerRecord(
        name=f"bee-{q.queue.tenant}",
        incarnation=incarnation,
        host="here",
        pid=7,
        queues=(q.queue,),
        concurrency=10,
        draining=draining,
        started_ms=q.clock.now_ms,
        seen_ms=q.clock.now_ms,
    )


async def who(q: Desk) -> list[str]:
    """The incarnations that are listed."""
    return [record.incarnation for record in await q.store.workers(q.queue)]


async def test_a_live_workers_name_is_not_given_to_another(q_twice: tuple[Desk, Desk]) -> None:
    first, second = q_twice
    assert not (await first.store.beat(worker(first, "one"), ttl_ms=TTL)).displaced
    assert await second.store.beat(worker(second, "two"), ttl_ms=TTL) == Beat(
        None, 1, displaced=True
    )
    assert await who(second) == ["one"]
    first.clock.advance(TTL - 1)
    assert not (await first.store.beat(worker(first, "one"), ttl_ms=TTL)).displaced
    first.clock.advance(TTL - 1)
    assert (await second.store.beat(worker(second, "two"), ttl_ms=TTL)).displaced


async def test_a_silent_workers_name_goes_to_the_next_and_its_next_beat_is_displaced(
    q: Desk,
) -> None:
    await q.store.beat(worker(q, "one"), ttl_ms=TTL)
    q.clock.advance(TTL + 1)
    assert not (await q.store.beat(worker(q, "two"), ttl_ms=TTL)).displaced
    assert (await q.store.beat(worker(q, "one"), ttl_ms=TTL)).displaced
    assert await who(q) == ["two"]


async def test_a_name_can_be_taken_from_a_worker_that_is_known_to_be_gone(q: Desk) -> None:
    await q.store.beat(worker(q, "one"), ttl_ms=TTL)
    assert not (await q.store.beat(worker(q, "two"), ttl_ms=TTL, displace=True)).displaced
    assert (await q.store.beat(worker(q, "one"), ttl_ms=TTL)).displaced
    assert await who(q) == ["two"]


async def test_a_displaced_worker_that_retires_leaves_the_name_to_the_other(q: Desk) -> None:
    await q.store.beat(worker(q, "one"), ttl_ms=TTL)
    await q.store.beat(worker(q, "two"), ttl_ms=TTL, displace=True)
    name = worker(q, "two").name
    await q.store.retire(name, incarnation="one")
    assert await who(q) == ["two"]
    await q.store.retire(name, incarnation="two")
    assert await who(q) == []


async def test_a_displaced_worker_that_retires_does_not_take_the_others_wake_up_along(
    q: Desk,
) -> None:
    name = worker(q, "two").name
    await q.store.beat(worker(q, "one"), ttl_ms=TTL)
    assert await q.claim(1, worker=name) == []
    await q.store.beat(worker(q, "two"), ttl_ms=TTL, displace=True)
    assert await q.claim(1, worker=name) == []
    await q.store.retire(name, incarnation="one")
    await q.put("a")
    assert await q.store.sleep([q.queue], worker=name, slots=1, timeout_ms=10 * SECOND)


async def test_a_retired_workers_name_is_free(q: Desk) -> None:
    await q.store.beat(worker(q, "one"), ttl_ms=TTL)
    await q.store.retire(worker(q, "one").name, incarnation="one")
    assert not (await q.store.beat(worker(q, "two"), ttl_ms=TTL)).displaced


async def test_a_draining_worker_is_listed_as_such(q: Desk) -> None:
    await q.store.beat(worker(q, "one", draining=True), ttl_ms=TTL)
    assert [record.draining for record in await q.store.workers(q.queue)] == [True]


@pytest.mark.parametrize("asked", ["drain", "resume", "shutdown", "shutdown-now"])
async def test_every_beat_returns_the_request_until_another_replaces_it(
    q: Desk, asked: WorkerRequest
) -> None:
    await q.store.beat(worker(q, "one"), ttl_ms=TTL)
    assert await q.store.ask_worker(worker(q, "one").name, asked)
    for _ in range(2):  # the first reply may have been lost
        assert (await q.store.beat(worker(q, "one"), ttl_ms=TTL)).request == asked
    await q.store.ask_worker(worker(q, "one").name, "resume")
    assert (await q.store.beat(worker(q, "one"), ttl_ms=TTL)).request == "resume"


@pytest.mark.parametrize("displace", [True, False])
async def test_a_new_incarnation_inherits_no_request(q: Desk, displace: bool) -> None:
    await q.store.beat(worker(q, "one"), ttl_ms=TTL)
    await q.store.ask_worker(worker(q, "one").name, "shutdown")
    if not displace:
        q.clock.advance(TTL + 1)
    assert (await q.store.beat(worker(q, "two"), ttl_ms=TTL, displace=displace)).request is None
    assert (await q.store.beat(worker(q, "two"), ttl_ms=TTL)).request is None
