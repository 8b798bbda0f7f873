"""Leases: how they are renewed and lost, and what a stall does."""

from __future__ import annotations

from jobq.core.records.jobs import Complete, LeaseRef, Note, Release
from jobq.core.records.states import State
from jobq_conformance.kit import DAY, LEASE, SECOND, Desk, complete, ref
from jobq_conformance.roles import needs

pytestmark = needs("leases")


async def test_a_lease_in_time_is_not_taken_by_anyone(q: Desk) -> None:
    await q.put("a")
    await q.take(lease_ms=10 * SECOND)
    q.clock.advance(10 * SECOND - 1)
    assert await q.claim(worker="w2") == []
    await q.tick()
    assert (await q.get("a")).stalls == 0


async def test_an_expired_lease_goes_to_the_next_claim(q: Desk) -> None:
    await q.put("a")
    await q.take("w1", lease_ms=10 * SECOND)
    q.clock.advance(10 * SECOND + 1)
    lease = await q.take("w2")
    assert (lease.id, lease.attempt, lease.stalls, lease.failures) == ("a", 2, 1, 0)
    assert (await q.get("a")).worker == "w2"
    assert await q.kinds("a") == ["accepted", "started", "stalled", "started"]


async def test_a_stalled_job_says_who_held_it(q: Desk) -> None:
    await q.put("a")
    await q.take("gone", lease_ms=SECOND)
    q.clock.advance(2 * SECOND)
    await q.tick()
    event = await q.last_event("a")
    assert (event.kind, event.attempt, event.stalls) == ("stalled", 1, 1)


async def test_tick_recovers_leases_in_queues_without_workers(q: Desk) -> None:
    await q.put("a")
    await q.take(lease_ms=SECOND)
    q.clock.advance(2 * SECOND)
    await q.tick()
    record = await q.get("a")
    assert (record.state, record.stalls) == (State.WAITING, 1)


async def test_a_renewed_lease_lives_on(q: Desk) -> None:
    await q.put("a")
    lease = await q.take(lease_ms=10 * SECOND)
    for _ in range(3):
        q.clock.advance(9 * SECOND)
        assert await q.store.extend([ref(lease)], lease_ms=10 * SECOND) == ["held"]
    assert await q.claim(worker="w2") == []
    q.clock.advance(11 * SECOND)
    assert (await q.take("w2")).id == "a"


async def test_extend_answers_in_order(q: Desk) -> None:
    await q.put("a", "b")
    a, b = await q.claim(2)
    await q.settle(complete(a))
    forged = LeaseRef(q.queue, "b", "nonsense")
    nobody = LeaseRef(q.queue, "nobody", b.token)
    assert await q.store.extend([ref(a), ref(b), forged, nobody], lease_ms=LEASE) == [
        "lost",
        "held",
        "lost",
        "lost",
    ]
    assert await q.store.extend([], lease_ms=LEASE) == []


async def test_a_lease_names_its_queue_too(q: Desk) -> None:
    """A server checks the tenant of a queue, so a token must not open jobs of another queue."""
    beside = q.beside("other")
    await q.put("a", "b")
    await beside.put("first", "a", "b")
    await beside.claim(3, worker="w2")
    lease, second = await q.claim(2)
    forged = LeaseRef(beside.queue, lease.id, lease.token)
    assert await q.store.extend([forged], lease_ms=LEASE) == ["lost"]
    assert await q.store.note([Note(lease=forged, progress=b"1", lines=("x",))]) == ["lost"]
    for outcome in (
        Complete(queue=beside.queue, id=lease.id, token=lease.token),
        Release(queue=beside.queue, id=second.id, token=second.token),
    ):
        settled = await q.exchange(outcome)
        assert [stale.id for stale in settled.stale] == [outcome.id]
    assert await q.states("a", "b") == await beside.states("a", "b") == ["active", "active"]
    await q.settle(complete(lease), complete(second))


async def test_a_lease_taken_by_another_is_lost(q: Desk) -> None:
    await q.put("a")
    old = await q.take("w1", lease_ms=SECOND)
    q.clock.advance(2 * SECOND)
    new = await q.take("w2")
    assert await q.store.extend([ref(old), ref(new)], lease_ms=LEASE) == ["lost", "held"]


async def test_a_lease_repaired_and_not_yet_taken_is_lost(q: Desk) -> None:
    await q.put("a")
    old = await q.take(lease_ms=SECOND)
    q.clock.advance(2 * SECOND)
    await q.tick()
    assert await q.store.extend([ref(old)], lease_ms=LEASE) == ["lost"]
    assert await q.state("a") is State.WAITING


async def test_an_expired_lease_can_be_renewed_until_another_worker_claims_the_job(q: Desk) -> None:
    await q.put("a")
    lease = await q.take(lease_ms=SECOND)
    q.clock.advance(5 * SECOND)
    assert await q.store.extend([ref(lease)], lease_ms=LEASE) == ["held"]
    assert await q.claim(worker="w2") == []
    await q.settle(complete(lease))


async def test_stalled_jobs_return_to_the_front_in_their_original_order(q: Desk) -> None:
    await q.put("a", "b", "c", "d")
    await q.claim(3, lease_ms=SECOND)
    q.clock.advance(2 * SECOND)
    assert await q.claim_ids(worker="w2") == ["a", "b", "c", "d"]


async def test_the_original_order_holds_when_leases_expire_at_different_times(q: Desk) -> None:
    await q.put("a", "b", "c", "d")
    for seconds in (9, 3, 6):
        await q.take(lease_ms=seconds * SECOND)
    for _ in range(3):
        q.clock.advance(3 * SECOND + 1)
        await q.tick()
    assert await q.claim_ids(worker="w2") == ["a", "b", "c", "d"]


async def test_a_stalled_job_goes_to_the_front_of_its_own_priority(q: Desk) -> None:
    await q.put("a", "b")
    await q.take(lease_ms=SECOND)
    await q.put_one("high", priority=1)
    q.clock.advance(2 * SECOND)
    assert await q.claim_ids(worker="w2") == ["high", "a", "b"]


async def test_a_job_may_stall_three_times_by_default_and_then_fails(q: Desk) -> None:
    await q.put("a")
    for stalls in range(4):
        lease = await q.take(lease_ms=SECOND)
        assert (lease.stalls, lease.attempt) == (stalls, stalls + 1)
        q.clock.advance(2 * SECOND)
    assert await q.claim() == []
    record = await q.get("a")
    assert (record.state, record.stalls, record.failures, record.attempt) == (State.FAILED, 4, 0, 4)
    assert record.failure is not None
    assert record.failure.reason == "stalled"
    event = await q.last_event("a")
    assert (event.kind, event.reason, event.previous) == ("failed", "stalled", State.ACTIVE)


async def test_no_stall_allowed_means_the_first_one_fails(q: Desk) -> None:
    await q.put_one("a", max_stalls=0)
    await q.take(lease_ms=SECOND)
    q.clock.advance(2 * SECOND)
    assert await q.claim() == []
    record = await q.get("a")
    assert (record.state, record.stalls) == (State.FAILED, 1)


async def test_repair_is_exact_among_many_leases(q: Desk) -> None:
    await q.put(*(f"j{n}" for n in range(60)))
    leases = await q.claim(60, lease_ms=10 * SECOND)
    kept = leases[::3]
    q.clock.advance(9 * SECOND)
    assert set(await q.store.extend([ref(lease) for lease in kept], lease_ms=10 * SECOND)) == {
        "held"
    }
    q.clock.advance(2 * SECOND)
    again = {lease.id for lease in await q.claim(100, worker="w2")}
    assert again == {lease.id for lease in leases} - {lease.id for lease in kept}


async def test_an_exchange_says_when_a_lease_of_another_worker_expires(q: Desk) -> None:
    await q.put("a")
    await q.take("w1", lease_ms=10 * SECOND)
    settled = await q.exchange(worker="w2", then=q.claiming())
    assert settled.next_due_ms is not None
    assert 0 < settled.next_due_ms <= 10 * SECOND + 1


async def test_long_leases_are_kept_to_the_letter(q: Desk) -> None:
    await q.put("a")
    lease = await q.take(lease_ms=DAY)
    assert lease.expires_ms == q.clock.now_ms + DAY
    q.clock.advance(DAY - 1)
    assert await q.claim(worker="w2") == []
