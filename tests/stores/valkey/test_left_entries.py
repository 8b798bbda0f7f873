"""Entries that jobs leave in the waiting list: none starts another job of its id, and the count of
them ends with the last one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from random import Random

import pytest

from jobq.core.records.commands import Cancel, Remove, Reprioritise
from jobq.core.records.jobs import JobKey, QueueName
from jobq.stores import open_store
from jobq.stores.valkey import keys
from jobq.stores.valkey.keys import texts
from jobq.stores.valkey.store import ValkeyStore
from jobq_conformance.kit import Desk, FakeClock
from jobq_conformance.lives import Lives
from tests.stores.valkey.jobs import done, exchange, spec, take
from tests.stores.valkey.servers import Server


@pytest.fixture
async def desk(server: Server, queue: QueueName) -> AsyncIterator[Desk]:
    clock = FakeClock()
    async with open_store(server.url, clock=clock) as store:
        yield Desk(store, queue, clock)


def left(server: Server, queue: QueueName) -> bytes:
    """What the server has about entries that were left."""
    return server.tell("HGETALL", f"{keys.Space().prefix(queue)}{texts('KEY')['left']}")


NOTHING = b"*0\r\n"


@pytest.mark.parametrize("seed", range(20))
async def test_nothing_is_left_when_all_entries_are_popped(
    server: Server, desk: Desk, seed: int
) -> None:
    lives = Lives(desk, Random(1000 + seed))
    await lives.play()
    while await desk.claim(100):
        pass
    assert left(server, desk.queue) == NOTHING


async def test_cancelled_jobs_leave_nothing_for_good(
    server: Server, store: ValkeyStore, queue: QueueName
) -> None:
    """Their records outlive the entries, and the removal of a record leaves nothing either."""
    ids = [f"a{n}" for n in range(10)]
    await store.put([spec(queue, id) for id in ids])
    await store.alter([Reprioritise(job=JobKey(queue, id), priority=3) for id in ids])
    await store.alter([Cancel(job=JobKey(queue, id)) for id in ids])
    assert left(server, queue) != NOTHING
    assert await take(store, queue, 100) == []
    assert left(server, queue) == NOTHING
    await store.alter([Remove(job=JobKey(queue, id)) for id in ids])
    assert left(server, queue) == NOTHING


async def test_an_entry_stays_stale_when_another_of_its_id_is_popped(
    server: Server, store: ValkeyStore, queue: QueueName
) -> None:
    """`a` leaves two entries. The second one, of a higher priority, is popped first."""
    job = JobKey(queue, "a")
    await store.put([spec(queue, "a")])
    await store.alter([Reprioritise(job=job, priority=5)])
    await store.put([spec(queue, "b", priority=5), *(spec(queue, f"c{n}") for n in range(6))])
    await store.alter([Cancel(job=job)])
    await store.alter([Remove(job=job)])
    (b,) = await take(store, queue, 1)
    assert b.id == "b"
    (again,) = await store.put([spec(queue, "a")])
    assert (again.life, again.duplicate) == (0, False)
    claimed = await exchange(store, queue, done(b), n=100)
    assert [lease.id for lease in claimed.leases] == [*(f"c{n}" for n in range(6)), "a"]


async def test_what_older_versions_have_stored_is_understood(
    server: Server, store: ValkeyStore, queue: QueueName
) -> None:
    """A number: the life that the next job of the id was to begin with."""
    await store.put([spec(queue, "a"), spec(queue, "b")])
    await store.alter([Cancel(job=JobKey(queue, "a"))])
    await store.alter([Remove(job=JobKey(queue, "a"))])
    server.tell("HSET", f"{keys.Space().prefix(queue)}{texts('KEY')['left']}", "a", "1")
    (again,) = await store.put([spec(queue, "a")])
    assert again.life == 0
    assert [lease.id for lease in await take(store, queue, 100)] == ["b", "a"]
    assert left(server, queue) == NOTHING
