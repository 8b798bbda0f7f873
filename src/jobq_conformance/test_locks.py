"""Unique locks: who holds one, and releasing it by hand."""

from __future__ import annotations

from jobq.core.records.jobs import LockRecord, QueueName, UniqueMode, UniqueSpec
from jobq.core.records.states import State
from jobq.stores.base import Store
from jobq_conformance.kit import HOUR, Desk, complete, read_all, read_log
from jobq_conformance.roles import needs

pytestmark = needs("unique", "locks")


def unique(mode: UniqueMode = "simple", ttl_ms: int | None = None) -> UniqueSpec:
    return UniqueSpec(lock="L", mode=mode, ttl_ms=ttl_ms)


async def test_the_holder_of_a_lock_is_found_until_it_ends(q: Desk) -> None:
    await q.put_one("a", unique=unique())
    assert await q.store.find_lock(q.queue, "L") == LockRecord("a")
    lease = await q.take()
    assert await q.store.find_lock(q.queue, "L") == LockRecord("a")
    await q.settle(complete(lease))
    assert await q.store.find_lock(q.queue, "L") is None


async def test_a_lock_with_a_period_says_when_it_ends(q: Desk) -> None:
    await q.put_one("a", unique=unique("throttle", HOUR))
    until = q.clock() + HOUR
    assert await q.store.find_lock(q.queue, "L") == LockRecord("a", until)
    await q.settle(complete(await q.take()))
    assert await q.store.find_lock(q.queue, "L") == LockRecord("a", until)
    q.clock.advance(HOUR)
    assert await q.store.find_lock(q.queue, "L") is None
    assert not await q.store.release_lock(q.queue, "L")


async def test_after_a_release_a_new_job_is_accepted_and_the_holder_goes_on(q: Desk) -> None:
    await q.put_one("a", unique=unique())
    lease = await q.take()
    assert await q.store.release_lock(q.queue, "L")
    assert await q.store.find_lock(q.queue, "L") is None
    assert not (await q.put_one("b", unique=unique())).duplicate
    assert await q.store.find_lock(q.queue, "L") == LockRecord("b")
    await q.settle(complete(lease))
    assert await q.store.find_lock(q.queue, "L") == LockRecord("b")  # the end of a takes nothing
    assert await q.states("a", "b") == ["completed", "waiting"]


async def test_a_throttle_can_be_released_after_its_job_has_ended(q: Desk) -> None:
    await q.put_one("a", unique=unique("throttle", HOUR))
    await q.settle(complete(await q.take()))
    assert (await q.put_one("b", unique=unique("throttle", HOUR))).duplicate
    assert await q.store.release_lock(q.queue, "L")
    assert not (await q.put_one("c", unique=unique("throttle", HOUR))).duplicate


async def test_a_release_unblocks_the_follow_up_which_takes_the_lock(q: Desk) -> None:
    await q.put_one("a", unique=unique("keep_last"))
    lease = await q.take()
    await q.put_one("b", unique=unique("keep_last"))
    assert await q.state("b") is State.BLOCKED
    assert await q.store.find_lock(q.queue, "L") == LockRecord("a", None, "b")
    assert await q.store.release_lock(q.queue, "L")
    assert await q.state("b") is State.WAITING
    assert await q.store.find_lock(q.queue, "L") == LockRecord("b")
    await q.settle(complete(lease))
    assert (await q.take()).id == "b"


async def test_a_release_can_name_the_job_that_must_hold_the_lock(q: Desk) -> None:
    await q.put_one("a", unique=unique())
    assert not await q.store.release_lock(q.queue, "L", job="b")
    assert await q.store.find_lock(q.queue, "L") == LockRecord("a")
    assert await q.store.release_lock(q.queue, "L", job="a")


async def test_a_release_is_on_record_with_its_actor(q: Desk) -> None:
    await q.put_one("a", unique=unique())
    assert await q.store.release_lock(q.queue, "L", actor="ada")
    assert not await q.store.release_lock(q.queue, "L", actor="eve")
    events = [e for e in await read_log(q.store, q.queue) if not e.job]
    assert [(str(e.kind), e.reason, e.actor) for e in events] == [("released_lock", "a", "ada")]


async def test_a_free_lock_and_an_unknown_queue_have_no_holder(store: Store, q: Desk) -> None:
    await q.put("a")
    nowhere = QueueName("nobody", "nothing")
    for queue in (q.queue, nowhere):
        assert await store.find_lock(queue, "L") is None
        assert not await store.release_lock(queue, "L")
    assert await read_all(store, nowhere) == []
    assert nowhere not in [record.queue for record in await store.queues()]
