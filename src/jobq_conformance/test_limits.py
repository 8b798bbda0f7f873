"""Limits of a queue: how many jobs run at once, and which declaration applies."""

from __future__ import annotations

import asyncio

import pytest

from jobq.core.records.queues import Limits, LimitsRecord, QueueConfig, Window
from jobq.core.records.states import State
from jobq.errors import ConfigError
from jobq_conformance.kit import DAY, SECOND, Desk, complete, fail, hold, release, retry
from jobq_conformance.roles import needs

pytestmark = needs("limits")


async def limit(q: Desk, version: int = 1, **limits: object) -> None:
    await q.store.declare(q.queue, QueueConfig(limits=Limits(**limits), limits_version=version))  # type: ignore[arg-type]


async def limits_of(q: Desk) -> LimitsRecord:
    (record,) = [r for r in await q.store.queues(q.queue.tenant) if r.queue == q.queue]
    return record.limits


# ── how many at once ──────────────────────────────────────────────────────────────────────────────


async def test_no_more_than_the_limit_run_at_once(q_twice: tuple[Desk, Desk]) -> None:
    first, second = q_twice
    await limit(first, limit=3)
    await first.put(*(f"j{n}" for n in range(10)))
    assert await first.claim_ids(2, worker="w1") == ["j0", "j1"]
    assert await second.claim_ids(5, worker="w2") == ["j2"]
    assert await first.claim(worker="w1") == []


async def test_a_freed_slot_is_used_in_the_same_exchange(q: Desk) -> None:
    await limit(q, limit=1)
    await q.put("a", "b", "c")
    lease = await q.take()
    for outcome, expected in ((complete, "b"), (fail, "c")):
        settled = await q.exchange(outcome(lease), then=q.claiming(5))
        (lease,) = settled.leases
        assert lease.id == expected


async def test_backoff_and_stalls_free_their_slots(q: Desk) -> None:
    await limit(q, limit=1)
    await q.put("a", "b", "c")
    await q.settle(retry(await q.take(), DAY))
    assert (await q.take(lease_ms=SECOND)).id == "b"
    q.clock.advance(2 * SECOND)
    assert await q.claim_ids(5, worker="w2") == ["b"]
    assert await q.counts() == {"active": 1, "delayed": 1, "waiting": 1}


async def test_a_freed_slot_wakes_a_sleeper(q: Desk) -> None:
    await limit(q, limit=1)
    await q.put("a", "b")
    lease = await q.take("w1")
    assert await q.claim(worker="w2") == []
    sleeping = asyncio.create_task(
        q.store.sleep([q.queue], worker="w2", slots=1, timeout_ms=10_000)
    )
    await asyncio.sleep(0)
    await q.settle(complete(lease), worker="w1")
    assert await sleeping


async def test_a_limit_holds_beside_the_limits_of_keys(q: Desk) -> None:
    await limit(q, limit=3, key_limit=2)
    await q.store.put([q.spec(f"{key}{n}", key=key) for key in "abc" for n in range(3)])
    assert await q.claim_ids() == ["a0", "b0", "c0"]


async def test_other_queues_are_not_limited(q: Desk) -> None:
    beside = q.beside("other")
    await limit(q, limit=1)
    await q.put("a", "b")
    await beside.put("x", "y")
    settled = await q.exchange(then=q.claiming(10, queues=(q.queue, beside.queue)))
    assert [lease.id for lease in settled.leases] == ["a", "x", "y"]


# ── who may say so ────────────────────────────────────────────────────────────────────────────────


async def test_the_same_version_with_the_same_limits_is_fine(q: Desk) -> None:
    await limit(q, limit=2)
    await limit(q, limit=2)
    assert await limits_of(q) == LimitsRecord(declared=Limits(limit=2), version=1)


async def test_the_same_version_with_other_limits_is_refused(q: Desk) -> None:
    await limit(q, limit=2)
    with pytest.raises(ConfigError, match="limits_version"):
        await limit(q, limit=3)
    assert (await limits_of(q)).effective.limit == 2


async def test_a_lower_version_is_ignored(q: Desk) -> None:
    await limit(q, version=5, limit=2)
    await limit(q, version=4, limit=9)
    record = await limits_of(q)
    assert (record.effective.limit, record.version) == (2, 5)


async def test_a_higher_version_replaces_the_limits(q: Desk) -> None:
    await limit(q, limit=2)
    await limit(q, version=2, limit=1, rate=Window(limit=5, per_ms=SECOND))
    record = await limits_of(q)
    assert record.effective == Limits(limit=1, rate=Window(limit=5, per_ms=SECOND))
    await q.put("a", "b")
    assert await q.claim_ids() == ["a"]


async def test_declaring_no_limits_leaves_those_that_are_stored(q: Desk) -> None:
    await limit(q, limit=1)
    record = await q.store.declare(q.queue, QueueConfig())
    assert record.limits.effective.limit == 1


async def test_a_change_at_run_time_is_stored_separately_and_takes_precedence(
    q_twice: tuple[Desk, Desk],
) -> None:
    first, second = q_twice
    await limit(first, limit=1)
    await second.store.set_limits(second.queue, Limits(limit=3))
    await limit(first, limit=1)  # a worker that starts again
    record = await limits_of(first)
    assert (record.declared.limit, record.changed, record.effective.limit) == (
        1,
        Limits(limit=3),
        3,
    )
    await first.put("a", "b", "c", "d")
    assert len(await first.claim_ids()) == 3


async def test_a_change_at_run_time_ends_with_a_higher_version(q: Desk) -> None:
    await limit(q, limit=1)
    await q.store.set_limits(q.queue, Limits(limit=3))
    await limit(q, version=2, limit=2)
    record = await limits_of(q)
    assert (record.changed, record.effective.limit) == (None, 2)


async def test_a_change_at_run_time_can_be_taken_back(q: Desk) -> None:
    await limit(q, limit=1)
    await q.store.set_limits(q.queue, Limits(limit=3))
    await q.store.set_limits(q.queue, None)
    assert (await limits_of(q)).effective.limit == 1


async def test_limits_can_be_lifted_at_run_time(q: Desk) -> None:
    await limit(q, limit=1, rate=Window(limit=1, per_ms=DAY))
    await q.put("a", "b", "c")
    assert await q.claim_ids() == ["a"]
    await q.store.set_limits(q.queue, Limits())
    assert await q.claim_ids() == ["b", "c"]


async def test_a_lowered_limit_waits_for_running_jobs_to_end(q: Desk) -> None:
    await limit(q, limit=3)
    await q.put(*(f"j{n}" for n in range(6)))
    leases = await q.claim(3)
    await q.store.set_limits(q.queue, Limits(limit=1))
    await q.settle(complete(leases[0]), complete(leases[1]))
    assert await q.claim() == []
    await q.settle(complete(leases[2]))
    assert await q.claim_ids() == ["j3"]


# ── a handler that meets a limit ──────────────────────────────────────────────────────────────────


async def test_a_held_job_goes_to_the_front_and_its_queue_waits(q: Desk) -> None:
    await q.put("a", "b")
    await q.settle(hold(await q.take(), 5 * SECOND))
    record = await q.get("a")
    assert (record.state, record.failures, record.stalls) == (State.WAITING, 0, 0)
    settled = await q.exchange(then=q.claiming(5))
    assert settled.leases == ()
    assert settled.next_due_ms == 5 * SECOND
    q.clock.advance(5 * SECOND)
    assert await q.claim_ids() == ["a", "b"]
    assert (await q.kinds("a"))[:3] == ["accepted", "started", "limited"]


async def test_the_hold_of_a_keyed_job_is_for_its_key_only(q: Desk) -> None:
    await q.store.put([q.spec(f"{key}{n}", key=key) for n in range(2) for key in "ab"])
    await q.settle(hold(await q.take(), 5 * SECOND))
    assert await q.claim_ids() == ["b0"]
    q.clock.advance(5 * SECOND)
    assert await q.claim_ids() == ["a0"]


async def test_a_longer_hold_is_not_cut_short_by_a_shorter_one(q: Desk) -> None:
    await q.put("a", "b", "c")
    a, b = await q.claim(2)
    await q.settle(hold(a, 10 * SECOND))
    await q.settle(hold(b, 2 * SECOND))
    q.clock.advance(3 * SECOND)
    assert await q.claim() == []
    q.clock.advance(7 * SECOND)
    assert await q.claim_ids() == ["a", "b", "c"]


async def test_jobs_that_run_go_on_while_their_queue_is_held(q: Desk) -> None:
    await q.put("a", "b")
    a, b = await q.claim(2)
    await q.settle(hold(a, 5 * SECOND))
    await q.settle(complete(b))
    assert await q.states("a", "b") == ["waiting", "completed"]


async def test_a_hold_does_not_reach_other_queues(q: Desk) -> None:
    beside = q.beside("other")
    await q.put("a")
    await beside.put("b")
    await q.settle(hold(await q.take(), 5 * SECOND))
    assert await beside.claim_ids() == ["b"]


async def test_a_released_job_under_a_rate_counts_as_a_start_again(q: Desk) -> None:
    await limit(q, rate=Window(limit=2, per_ms=10 * SECOND))
    await q.put("a", "b")
    await q.settle(release(await q.take()))
    assert await q.claim_ids() == ["a"]
    assert await q.claim() == []
