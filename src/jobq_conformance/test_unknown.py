"""Jobs whose task the worker does not know: they are deferred, and do not count as started."""

from __future__ import annotations

import pytest

from jobq.core.records.commands import (
    Cancel,
    Promote,
    Reprioritise,
    Rerun,
    Reschedule,
    Update,
)
from jobq.core.records.jobs import UniqueSpec
from jobq.core.records.states import State
from jobq_conformance.kit import (
    HOUR,
    LEASE,
    MINUTE,
    SECOND,
    Desk,
    complete,
    defer,
    fail,
    release,
    retry,
)


async def put_off(q: Desk, id: str, *, times: int = 1, delay_ms: int = SECOND) -> None:
    """A worker that does not know the task claims the job, so many times."""
    for _ in range(times):
        lease = await q.take("old")
        assert lease.id == id
        await q.settle(defer(lease, delay_ms), worker="old")
        q.clock.advance(delay_ms)


async def test_it_is_delayed_and_costs_neither_a_failure_nor_a_stall(q: Desk) -> None:
    await q.put("a")
    lease = await q.take("old")
    assert lease.unknown_ms is None
    await q.settle(defer(lease, 5 * SECOND), worker="old")
    record = await q.get("a")
    assert (record.state, record.attempt, record.failures, record.stalls) == (
        State.DELAYED,
        1,
        0,
        0,
    )
    assert (record.started_ms, record.due_ms) == (None, q.clock.now_ms + 5 * SECOND)
    event = await q.last_event("a")
    assert (event.kind, event.reason, event.previous, event.worker) == (
        "snoozed",
        "unknown",
        State.ACTIVE,
        "old",
    )
    q.clock.advance(5 * SECOND - 1)
    assert await q.claim() == []
    q.clock.advance(1)
    assert (await q.take()).attempt == 2


async def test_a_lease_says_since_when_its_task_is_unknown(q: Desk) -> None:
    await q.put("a")
    q.clock.advance(7 * SECOND)
    first = q.clock.now_ms
    await put_off(q, "a", times=3)
    lease = await q.take()
    assert (lease.unknown_ms, lease.attempt) == (first, 4)
    await q.settle(complete(lease))
    assert (await q.get("a")).started_ms == lease.started_ms


async def test_a_repeated_exchange_says_so_again(q: Desk) -> None:
    await q.put("a")
    first = q.clock.now_ms
    await put_off(q, "a")
    for _ in range(2):
        settled = await q.exchange(call="once", then=q.claiming(5))
        assert [lease.unknown_ms for lease in settled.leases] == [first]


async def test_given_up_it_fails_as_unknown(q: Desk) -> None:
    await q.put("a")
    await put_off(q, "a")
    await q.settle(fail(await q.take(), "nobody knows it", "unknown"))
    record = await q.get("a")
    assert record.failure is not None
    assert (record.state, record.failure.reason) == (State.FAILED, "unknown")
    assert (await q.last_event("a")).reason == "unknown"


async def test_one_that_was_asked_to_stop_is_cancelled(q: Desk) -> None:
    await q.put("a")
    lease = await q.take()
    await q.alter(Cancel(job=q.key("a")))
    await q.settle(defer(lease, SECOND))
    assert await q.state("a") is State.CANCELLED


async def test_a_stale_lease_puts_nothing_off(q: Desk) -> None:
    await q.put("a")
    lease = await q.take(lease_ms=SECOND)
    q.clock.advance(2 * SECOND)
    new = await q.take("w2")
    assert len((await q.exchange(defer(lease, SECOND))).stale) == 1
    await q.settle(complete(new))


# ── as if it had not started ──────────────────────────────────────────────────────────────────────


async def test_its_ttl_goes_on_from_when_it_was_due(q: Desk) -> None:
    await q.put_one("a", ttl_ms=10 * SECOND, delay_ms=5 * SECOND)
    q.clock.advance(5 * SECOND)
    await put_off(q, "a", times=3, delay_ms=3 * SECOND)
    q.clock.advance(SECOND - 1)
    await q.tick()
    assert await q.state("a") is State.WAITING
    q.clock.advance(2)
    await q.tick()
    record = await q.get("a")
    assert (record.state, record.failure and record.failure.reason) == (State.FAILED, "expired")


async def test_a_start_by_a_worker_that_knows_it_ends_its_ttl(q: Desk) -> None:
    await q.put_one("a", ttl_ms=10 * SECOND)
    await put_off(q, "a", times=2)
    await q.settle(release(await q.take()))
    q.clock.advance(MINUTE)
    await q.tick()
    assert (await q.take()).id == "a"


async def test_a_keyed_one_expires_as_well(q: Desk) -> None:
    await q.put_one("a", key="k", ttl_ms=10 * SECOND)
    await q.put_one("b", key="k")
    await put_off(q, "a", times=3, delay_ms=3 * SECOND)
    q.clock.advance(SECOND + 1)
    assert [lease.id for lease in await q.claim(5)] == ["b"]
    assert await q.state("a") is State.FAILED


async def test_it_can_be_updated_and_reprioritised(q: Desk) -> None:
    await q.put("a")
    lease = await q.take()
    await q.settle(defer(lease, SECOND))
    assert (
        await q.store.alter(
            [Update(job=q.key("a"), payload=b"[[1],{}]"), Reprioritise(job=q.key("a"), priority=3)]
        )
    ) == [
        "done",
        "done",
    ]
    q.clock.advance(SECOND)
    assert (await q.take()).payload == b"[[1],{}]"


async def test_once_it_has_started_it_cannot(q: Desk) -> None:
    await q.put("a")
    await put_off(q, "a", times=2)
    await q.settle(retry(await q.take(), SECOND))
    assert await q.store.alter([Update(job=q.key("a"), payload=b"[[1],{}]")]) == ["late"]
    q.clock.advance(SECOND)
    await q.settle(defer(await q.take("old"), SECOND), worker="old")
    assert await q.store.alter([Update(job=q.key("a"), payload=b"[[1],{}]")]) == ["late"]
    assert (await q.get("a")).started_ms is not None


@pytest.mark.parametrize("mode", ["debounce", "keep_last"])
async def test_a_unique_job_that_was_put_off_is_replaced_like_one_that_waits(
    q: Desk, mode: str
) -> None:
    lock = UniqueSpec(lock="l", mode=mode)  # type: ignore[arg-type]
    await q.put_one("a", unique=lock)
    await q.settle(defer(await q.take("old"), SECOND), worker="old")
    result = await q.put_one("b", unique=lock, payload=b"[[2],{}]")
    assert (result.id, result.duplicate) == ("a", True)
    q.clock.advance(SECOND)
    lease = await q.take()
    assert (lease.id, lease.payload) == ("a", b"[[2],{}]")
    assert lease.unknown_ms is not None


async def test_rescheduled_its_ttl_counts_from_the_new_time(q: Desk) -> None:
    await q.put_one("a", ttl_ms=10 * SECOND)
    await q.settle(defer(await q.take("old"), SECOND), worker="old")
    await q.alter(Reschedule(job=q.key("a"), delay_ms=HOUR))
    q.clock.advance(HOUR + 9 * SECOND)
    assert (await q.take()).id == "a"


async def test_promoted_it_is_claimed_at_once(q: Desk) -> None:
    await q.put("a")
    await q.settle(defer(await q.take("old"), 30 * SECOND), worker="old")
    await q.alter(Promote(job=q.key("a")))
    assert (await q.take()).attempt == 2


async def test_rerun_begins_the_hour_again(q: Desk) -> None:
    await q.put("a")
    await put_off(q, "a")
    await q.settle(fail(await q.take(), "nobody knows it", "unknown"))
    await q.alter(Rerun(job=q.key("a")))
    assert (await q.take()).unknown_ms is None


# ── keys ──────────────────────────────────────────────────────────────────────────────────────────


async def test_in_a_keyed_queue_it_holds_its_key_and_nothing_overtakes_it(q: Desk) -> None:
    for id in ("k1", "k2", "j1"):
        await q.put_one(id, key=id[0])
    leases = {lease.id: lease for lease in await q.claim(5, worker="old")}
    assert set(leases) == {"k1", "j1"}
    await q.settle(defer(leases["k1"], 5 * SECOND), complete(leases["j1"]), worker="old")
    assert await q.claim(5) == []
    await q.put_one("k3", key="k")
    q.clock.advance(5 * SECOND - 1)
    assert await q.claim(5) == []
    q.clock.advance(1)
    order = []
    for _ in range(3):
        (lease,) = await q.claim(5)
        order.append(lease.id)
        await q.settle(complete(lease))
    assert order == ["k1", "k2", "k3"]


async def test_an_exchange_says_when_a_held_key_may_start(q: Desk) -> None:
    await q.put_one("a", key="k")
    await q.settle(defer(await q.take("old"), 5 * SECOND), worker="old")
    settled = await q.exchange(then=q.claiming(5))
    assert (settled.leases, settled.asleep) == ((), True)
    assert settled.next_due_ms is not None
    assert 0 < settled.next_due_ms <= 5 * SECOND


async def test_put_off_and_stalled_it_keeps_both_counts(q: Desk) -> None:
    await q.put("a")
    await put_off(q, "a", times=2)
    await q.take("dies", lease_ms=SECOND)
    q.clock.advance(LEASE)
    lease = await q.take()
    assert (lease.stalls, lease.attempt, lease.unknown_ms is None) == (1, 4, False)
