"""Two features together: limits, pause, keys, flows and dead letters."""

from __future__ import annotations

from jobq.core.records.commands import Cancel, Rerun
from jobq.core.records.jobs import UniqueSpec
from jobq.core.records.queues import Limits, QueueConfig, Window
from jobq.core.records.states import State
from jobq_conformance.kit import (
    DAY,
    SECOND,
    Desk,
    block,
    complete,
    fail,
    hold,
    release,
    retry,
)

SIMPLE = UniqueSpec(lock="L")


# ── limits × … ────────────────────────────────────────────────────────────────────────────────────


async def test_rate_limit_and_retry_a_retry_that_is_due_waits_for_the_window(q: Desk) -> None:
    await q.store.declare(
        q.queue, QueueConfig(limits=Limits(rate=Window(limit=1, per_ms=10 * SECOND)))
    )
    await q.put("a")
    await q.settle(retry(await q.take(), SECOND))
    q.clock.advance(2 * SECOND)
    assert await q.claim() == []
    record = await q.get("a")
    assert (record.state, record.attempt, record.failures) == (State.WAITING, 1, 1)
    q.clock.advance(8 * SECOND)
    assert (await q.take()).attempt == 2


async def test_rate_limit_and_keyed_fifo_holds_while_limited(q: Desk) -> None:
    limits = Limits(key_limit=5, key_rate=Window(limit=1, per_ms=10 * SECOND))
    await q.store.declare(q.queue, QueueConfig(limits=limits))
    await q.put("a1", "a2", "a3", key="a")
    order = []
    for _ in range(3):
        order += await q.claim_ids()
        q.clock.advance(10 * SECOND)
    assert order == ["a1", "a2", "a3"]


async def test_rate_limit_and_ttl_a_job_may_expire_while_limited(q: Desk) -> None:
    await q.store.declare(q.queue, QueueConfig(limits=Limits(rate=Window(limit=1, per_ms=DAY))))
    await q.put("a", "b", ttl_ms=10 * SECOND)
    assert await q.claim_ids() == ["a"]
    q.clock.advance(11 * SECOND)
    await q.tick()
    assert await q.states("b") == ["failed"]


async def test_queue_limit_and_cancel_an_asked_job_keeps_its_slot_until_it_ends(q: Desk) -> None:
    await q.store.declare(q.queue, QueueConfig(limits=Limits(limit=1)))
    await q.put("a", "b")
    lease = await q.take()
    await q.alter(Cancel(job=q.key("a")))
    assert await q.claim() == []
    await q.settle(release(lease))
    assert await q.claim_ids() == ["b"]


async def test_queue_limit_and_wait_a_blocked_job_frees_its_slot(q: Desk) -> None:
    await q.store.declare(q.queue, QueueConfig(limits=Limits(limit=1)))
    await q.put("p")
    lease = await q.take()
    await q.put("p/1")
    settled = await q.exchange(block(lease, after=(q.edge("p/1"),)), then=q.claiming())
    assert [x.id for x in settled.leases] == ["p/1"]
    settled = await q.exchange(complete(settled.leases[0]), then=q.claiming())
    assert [x.id for x in settled.leases] == ["p"]


async def test_queue_limit_and_obliterate_slots_are_free_afterwards(q: Desk) -> None:
    await q.store.declare(q.queue, QueueConfig(limits=Limits(limit=1)))
    await q.put("a")
    await q.take()
    await q.store.obliterate(q.queue, force=True)
    await q.store.declare(q.queue, QueueConfig(limits=Limits(limit=1)))
    await q.put("b")
    assert await q.claim_ids() == ["b"]


async def test_hold_and_cancel_an_asked_job_holds_nothing(q: Desk) -> None:
    await q.put("a", "b")
    lease = await q.take()
    await q.alter(Cancel(job=q.key("a")))
    await q.settle(hold(lease, DAY))
    assert await q.state("a") is State.CANCELLED


async def test_hold_and_pause_end_separately(q: Desk) -> None:
    await q.put("a")
    await q.settle(hold(await q.take(), 5 * SECOND))
    await q.store.pause(q.queue)
    q.clock.advance(6 * SECOND)
    assert await q.claim() == []
    await q.store.resume(q.queue)
    assert await q.claim_ids() == ["a"]


# ── pause × … ─────────────────────────────────────────────────────────────────────────────────────


async def test_pause_and_delayed_a_due_job_is_promoted_and_not_claimed(q: Desk) -> None:
    await q.put_one("a", delay_ms=SECOND)
    await q.store.pause(q.queue)
    q.clock.advance(2 * SECOND)
    assert await q.claim() == []
    assert await q.state("a") is State.WAITING
    await q.store.resume(q.queue)
    assert await q.claim_ids() == ["a"]


async def test_pause_and_flow_a_parent_is_unblocked_and_not_claimed(q: Desk) -> None:
    await q.store.put([q.spec("a"), q.spec("p", after=(q.edge("a"),))])
    lease = await q.take()
    await q.store.pause(q.queue)
    settled = await q.exchange(complete(lease), then=q.claiming())
    assert settled.leases == ()
    assert await q.state("p") is State.WAITING


# ── keyed × … ─────────────────────────────────────────────────────────────────────────────────────


async def test_keyed_and_flow_a_blocked_parent_does_not_hold_its_key(q: Desk) -> None:
    await q.store.put(
        [q.spec("a", key="x"), q.spec("p", key="k", after=(q.edge("a"),)), q.spec("b", key="k")]
    )
    leases = {lease.id: lease for lease in await q.claim(5)}
    assert sorted(leases) == ["a", "b"]
    await q.settle(complete(leases["a"]))
    assert await q.claim() == []  # the key is taken by b
    await q.settle(complete(leases["b"]))
    assert await q.claim_ids() == ["p"]


async def test_keyed_and_stall_past_the_last_stall_the_key_goes_on(q: Desk) -> None:
    await q.put_one("a1", key="a", max_stalls=0)
    await q.put_one("a2", key="a")
    await q.take(lease_ms=SECOND)
    q.clock.advance(2 * SECOND)
    assert await q.claim_ids(worker="w2") == ["a2"]
    assert await q.state("a1") is State.FAILED


async def test_keyed_and_purge_a_purged_key_can_be_used_again(q: Desk) -> None:
    await q.put("a1", "a2", key="a")
    await q.store.purge_pending(q.queue)
    await q.put_one("a3", key="a")
    assert await q.claim_ids() == ["a3"]


async def test_keyed_and_rerun_a_rerun_goes_behind_the_jobs_of_its_key(q: Desk) -> None:
    await q.put_one("a1", key="a")
    await q.settle(complete(await q.take()))
    await q.put_one("a2", key="a")
    await q.alter(Rerun(job=q.key("a1")))
    first = await q.take()
    assert first.id == "a2"
    await q.settle(complete(first))
    assert await q.claim_ids() == ["a1"]


# ── cancel × dead letters, retention × flow ───────────────────────────────────────────────────────


async def test_dead_letters_and_flow_a_parent_failed_by_its_child_is_copied_too(q: Desk) -> None:
    graves = q.beside("graves")
    await q.store.declare(q.queue, QueueConfig(dead_letters="graves"))
    await q.store.put([q.spec("a"), q.spec("p", after=(q.edge("a"),))])
    await q.settle(fail(await q.take()))
    await q.tick()
    assert await graves.counts() == {"waiting": 2}


async def test_result_ttl_and_unique_an_expired_record_frees_id_and_lock(q: Desk) -> None:
    await q.run("a", unique=SIMPLE, result_ttl_ms=SECOND)
    q.clock.advance(2 * SECOND)
    assert not (await q.put_one("a", unique=SIMPLE)).duplicate
    assert (await q.put_one("b", unique=SIMPLE)).id == "a"
