"""pause: claims stop, and everything else goes on."""

from __future__ import annotations

from jobq.core.records.states import State
from jobq_conformance.kit import DAY, SECOND, Desk, complete, ref, retry
from jobq_conformance.roles import needs

pytestmark = needs("operators")


async def test_nothing_is_claimed_from_a_paused_queue(q: Desk) -> None:
    await q.put("a")
    await q.store.pause(q.queue)
    assert await q.claim() == []
    assert await q.state("a") is State.WAITING
    await q.store.resume(q.queue)
    assert await q.claim_ids() == ["a"]


async def test_a_paused_queue_still_accepts_jobs(q: Desk) -> None:
    await q.store.pause(q.queue)
    assert (await q.put_one("a")).state is State.WAITING
    assert await q.claim() == []


async def test_only_the_paused_queue_is_paused(q: Desk) -> None:
    beside = q.beside("other")
    await q.put("a")
    await beside.put("b")
    await q.store.pause(q.queue)
    settled = await q.exchange(then=q.claiming(5, queues=(q.queue, beside.queue)))
    assert [lease.id for lease in settled.leases] == ["b"]


async def test_running_jobs_of_a_paused_queue_go_on(q: Desk) -> None:
    await q.put("a", "b")
    a, b = await q.claim(2)
    await q.store.pause(q.queue)
    assert await q.store.extend([ref(a)], lease_ms=SECOND) == ["held"]
    await q.settle(complete(a), retry(b, SECOND))
    assert await q.states("a", "b") == ["completed", "delayed"]


async def test_promotion_repair_and_expiry_go_on_while_paused(q: Desk) -> None:
    await q.put("stalls")
    await q.take(lease_ms=SECOND)
    await q.put_one("delayed", delay_ms=SECOND)
    await q.put_one("expires", ttl_ms=SECOND)
    await q.store.pause(q.queue)
    q.clock.advance(2 * SECOND)
    assert await q.claim(10, worker="w2") == []
    await q.tick()
    assert await q.states("stalls", "delayed", "expires") == ["waiting", "waiting", "failed"]


async def test_a_claim_promotes_and_repairs_a_paused_queue(q: Desk) -> None:
    await q.put("stalls")
    await q.take(lease_ms=SECOND)
    await q.put_one("delayed", delay_ms=SECOND)
    await q.store.pause(q.queue)
    q.clock.advance(2 * SECOND)
    assert await q.claim(10, worker="w2") == []
    assert await q.states("stalls", "delayed") == ["waiting", "waiting"]


async def test_pausing_is_seen_and_kept_through_every_handle(q_twice: tuple[Desk, Desk]) -> None:
    first, second = q_twice
    await first.put("a")
    await first.store.pause(first.queue)
    assert await second.claim() == []
    assert (await second.store.stats(second.queue)).paused
    assert [r.paused for r in await second.store.queues(first.queue.tenant)] == [True]
    await second.store.resume(second.queue)
    assert not (await first.store.stats(first.queue)).paused
    assert await first.claim_ids() == ["a"]


async def test_pausing_and_resuming_repeated_changes_nothing(q: Desk) -> None:
    for _ in range(2):
        await q.store.pause(q.queue)
    await q.put("a")
    for _ in range(2):
        await q.store.resume(q.queue)
    assert await q.claim_ids() == ["a"]


async def test_a_queue_can_be_paused_before_its_first_job(q: Desk) -> None:
    await q.store.pause(q.queue)
    q.clock.advance(DAY)
    await q.put("a")
    assert await q.claim() == []
