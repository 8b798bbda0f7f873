"""Unique jobs: simple, throttle, debounce, keep_last."""

from __future__ import annotations

from typing import Literal

import pytest

from jobq.core.records.commands import Cancel, Remove
from jobq.core.records.jobs import UniqueSpec
from jobq.core.records.states import State
from jobq_conformance.kit import DAY, SECOND, Desk, complete, fail, release, retry, snooze
from jobq_conformance.roles import needs

pytestmark = needs("unique")

SIMPLE = UniqueSpec(lock="L")
THROTTLE = UniqueSpec(lock="L", mode="throttle", ttl_ms=10 * SECOND)
DEBOUNCE = UniqueSpec(lock="L", mode="debounce")
KEEP_LAST = UniqueSpec(lock="L", mode="keep_last")


# ── simple ────────────────────────────────────────────────────────────────────────────────────────


async def test_a_held_lock_answers_with_its_holder(q: Desk) -> None:
    await q.put_one("a", unique=SIMPLE, payload=b"1")
    result = await q.put_one("b", unique=SIMPLE, payload=b"2")
    assert (result.id, result.duplicate, result.state) == ("a", True, State.WAITING)
    assert result.found is not None
    assert (result.found.id, result.found.payload) == ("a", b"1")
    assert await q.look("b") is None
    assert await q.claim_ids() == ["a"]


async def test_locks_in_one_call_hold_among_its_specs(q: Desk) -> None:
    results = await q.put("a", "b", unique=SIMPLE)
    assert [(r.id, r.duplicate) for r in results] == [("a", False), ("a", True)]


async def test_other_locks_and_other_queues_are_free(q: Desk) -> None:
    beside = q.beside("other")
    await q.put_one("a", unique=SIMPLE)
    assert not (await q.put_one("b", unique=UniqueSpec(lock="M"))).duplicate
    assert not (await beside.put_one("c", unique=SIMPLE)).duplicate
    assert not (await q.put_one("d")).duplicate


async def test_simple_holds_while_the_job_waits_runs_or_backs_off(q: Desk) -> None:
    await q.put_one("a", unique=SIMPLE, delay_ms=SECOND)
    assert (await q.put_one("b", unique=SIMPLE)).duplicate
    q.clock.advance(SECOND)
    lease = await q.take()
    assert (await q.put_one("b", unique=SIMPLE)).state is State.ACTIVE
    await q.settle(retry(lease, SECOND))
    assert (await q.put_one("b", unique=SIMPLE)).state is State.DELAYED
    q.clock.advance(SECOND)
    await q.settle(snooze(await q.take()))
    await q.settle(release(await q.take()))
    assert (await q.put_one("b", unique=SIMPLE)).duplicate


@pytest.mark.parametrize(
    "end", ["completed", "failed", "cancelled", "asked", "removed", "expired", "stalled"]
)
async def test_simple_is_released_by_every_end(q: Desk, end: str) -> None:
    await q.put_one("a", unique=SIMPLE, ttl_ms=DAY, max_stalls=0)
    if end == "completed":
        await q.settle(complete(await q.take()))
    elif end == "failed":
        await q.settle(fail(await q.take()))
    elif end == "cancelled":
        await q.alter(Cancel(job=q.key("a")))
    elif end == "removed":
        await q.alter(Remove(job=q.key("a")))
    elif end == "asked":
        lease = await q.take()
        await q.alter(Cancel(job=q.key("a")))
        await q.settle(retry(lease))
    elif end == "expired":
        q.clock.advance(DAY + SECOND)
        await q.tick()
    else:
        await q.take(lease_ms=SECOND)
        q.clock.advance(2 * SECOND)
        await q.tick()
    assert (await q.get("a")).state.ended
    result = await q.put_one("b", unique=SIMPLE)
    assert (result.id, result.duplicate) == ("b", False)


async def test_a_simple_lock_with_a_ttl_holds_no_longer_than_that(q: Desk) -> None:
    lock = UniqueSpec(lock="L", ttl_ms=10 * SECOND)
    await q.put_one("a", unique=lock)
    q.clock.advance(9 * SECOND)
    assert (await q.put_one("b", unique=lock)).duplicate
    q.clock.advance(2 * SECOND)
    assert not (await q.put_one("b", unique=lock)).duplicate


async def test_the_end_of_a_job_does_not_release_a_lock_that_went_to_another(q: Desk) -> None:
    lock = UniqueSpec(lock="L", ttl_ms=10 * SECOND)
    await q.put_one("a", unique=lock)
    q.clock.advance(11 * SECOND)
    await q.put_one("b", unique=lock)
    a = await q.take()
    assert a.id == "a"
    await q.settle(complete(a))
    result = await q.put_one("c", unique=lock)
    assert (result.id, result.duplicate) == ("b", True)


async def test_a_live_id_is_found_before_its_lock_is_asked(q: Desk) -> None:
    await q.run("a", unique=SIMPLE)
    await q.put_one("b", unique=SIMPLE)
    result = await q.put_one("a", unique=SIMPLE)
    assert (result.id, result.state, result.duplicate) == ("a", State.COMPLETED, True)


# ── throttle ──────────────────────────────────────────────────────────────────────────────────────


async def test_throttle_holds_for_its_ttl_whatever_happens(q: Desk) -> None:
    await q.run("a", unique=THROTTLE)
    result = await q.put_one("b", unique=THROTTLE)
    assert (result.id, result.duplicate, result.state) == ("a", True, State.COMPLETED)
    q.clock.advance(9 * SECOND)
    assert (await q.put_one("b", unique=THROTTLE)).duplicate
    q.clock.advance(2 * SECOND)
    assert not (await q.put_one("b", unique=THROTTLE)).duplicate


async def test_throttle_releases_its_lock_after_its_period_though_the_job_still_waits(
    q: Desk,
) -> None:
    await q.put_one("a", unique=THROTTLE)
    q.clock.advance(11 * SECOND)
    assert not (await q.put_one("b", unique=THROTTLE)).duplicate
    assert await q.claim_ids() == ["a", "b"]


async def test_throttle_holds_its_lock_though_the_record_is_gone(q: Desk) -> None:
    await q.run("a", unique=THROTTLE, result_ttl_ms=SECOND)
    q.clock.advance(2 * SECOND)
    result = await q.put_one("b", unique=THROTTLE)
    assert (result.id, result.duplicate) == ("a", True)
    assert await q.look("b") is None


@pytest.mark.parametrize("command", [Cancel, Remove])
async def test_cancel_and_remove_release_a_throttle(
    q: Desk, command: type[Cancel] | type[Remove]
) -> None:
    await q.put_one("a", unique=THROTTLE)
    assert await q.alter(command(job=q.key("a")))
    assert not (await q.put_one("b", unique=THROTTLE)).duplicate


async def test_removing_an_ended_job_releases_its_throttle(q: Desk) -> None:
    await q.run("a", unique=THROTTLE)
    await q.alter(Remove(job=q.key("a")))
    assert not (await q.put_one("b", unique=THROTTLE)).duplicate


# ── debounce ──────────────────────────────────────────────────────────────────────────────────────


async def test_debounce_keeps_the_pending_id_with_the_new_data_and_starts_the_wait_again(
    q: Desk,
) -> None:
    await q.put_one("a", unique=DEBOUNCE, delay_ms=5 * SECOND, payload=b"1")
    q.clock.advance(4 * SECOND)
    result = await q.put_one(
        "b", unique=DEBOUNCE, delay_ms=5 * SECOND, payload=b"2", codec="msgpack"
    )
    assert (result.id, result.duplicate, result.state) == ("a", True, State.DELAYED)
    assert await q.look("b") is None
    q.clock.advance(4 * SECOND)
    assert await q.claim() == []
    q.clock.advance(SECOND)
    lease = await q.take()
    assert (lease.id, lease.payload, lease.codec) == ("a", b"2", "msgpack")
    assert await q.kinds("a") == ["accepted", "changed", "promoted", "started"]


async def test_debounce_of_a_job_that_is_due_starts_the_wait_again(q: Desk) -> None:
    await q.put_one("a", unique=DEBOUNCE, delay_ms=SECOND, payload=b"1")
    q.clock.advance(2 * SECOND)
    await q.tick()
    result = await q.put_one("b", unique=DEBOUNCE, delay_ms=SECOND, payload=b"2")
    assert (result.id, result.duplicate, result.state) == ("a", True, State.DELAYED)
    assert await q.claim() == []
    q.clock.advance(SECOND)
    assert (await q.take()).payload == b"2"


async def test_debounce_releases_its_lock_when_the_job_starts(q: Desk) -> None:
    await q.put_one("a", unique=DEBOUNCE, delay_ms=SECOND)
    q.clock.advance(SECOND)
    await q.take()
    result = await q.put_one("b", unique=DEBOUNCE, delay_ms=SECOND)
    assert (result.id, result.duplicate, result.state) == ("b", False, State.DELAYED)


async def test_the_end_of_a_debounced_run_leaves_the_next_one_its_lock(q: Desk) -> None:
    await q.put_one("a", unique=DEBOUNCE, delay_ms=SECOND)
    q.clock.advance(SECOND)
    lease = await q.take()
    await q.put_one("b", unique=DEBOUNCE, delay_ms=SECOND)
    await q.settle(complete(lease))
    result = await q.put_one("c", unique=DEBOUNCE, delay_ms=SECOND)
    assert (result.id, result.duplicate) == ("b", True)


async def test_cancelling_the_pending_one_releases_a_debounce(q: Desk) -> None:
    await q.put_one("a", unique=DEBOUNCE, delay_ms=SECOND)
    await q.alter(Cancel(job=q.key("a")))
    assert not (await q.put_one("b", unique=DEBOUNCE, delay_ms=SECOND)).duplicate


# ── keep_last ─────────────────────────────────────────────────────────────────────────────────────


async def test_keep_last_replaces_the_data_of_one_that_has_not_started(q: Desk) -> None:
    await q.put_one("a", unique=KEEP_LAST, payload=b"1")
    result = await q.put_one("b", unique=KEEP_LAST, payload=b"2")
    assert (result.id, result.duplicate, result.state) == ("a", True, State.WAITING)
    assert await q.look("b") is None
    assert (await q.take()).payload == b"2"


async def test_keep_last_makes_one_follow_up_while_one_runs(q: Desk) -> None:
    await q.put_one("a", unique=KEEP_LAST, payload=b"1")
    running = await q.take()
    second = await q.put_one("b", unique=KEEP_LAST, payload=b"2")
    assert (second.id, second.duplicate, second.state) == ("b", False, State.BLOCKED)
    third = await q.put_one("c", unique=KEEP_LAST, payload=b"3")
    assert (third.id, third.duplicate, third.state) == ("b", True, State.BLOCKED)
    assert await q.look("c") is None
    assert await q.claim(worker="w2") == []
    await q.settle(complete(running))
    lease = await q.take()
    assert (lease.id, lease.payload) == ("b", b"3")
    assert await q.kinds("b") == ["accepted", "changed", "unblocked", "started"]


async def test_the_follow_up_can_be_claimed_in_the_exchange_that_ends_the_running_one(
    q: Desk,
) -> None:
    await q.put_one("a", unique=KEEP_LAST)
    running = await q.take()
    await q.put_one("b", unique=KEEP_LAST)
    settled = await q.exchange(complete(running), then=q.claiming())
    assert [lease.id for lease in settled.leases] == ["b"]


@pytest.mark.parametrize("end", ["failed", "asked", "stalled"])
async def test_the_follow_up_is_released_however_the_running_one_ends(
    q: Desk, end: Literal["failed", "asked", "stalled"]
) -> None:
    await q.put_one("a", unique=KEEP_LAST, max_stalls=0)
    running = await q.take(lease_ms=SECOND)
    await q.put_one("b", unique=KEEP_LAST)
    if end == "asked":
        await q.alter(Cancel(job=q.key("a")))
    if end == "stalled":
        q.clock.advance(2 * SECOND)
        await q.tick()
    else:
        await q.settle(fail(running))
    assert await q.state("b") is State.WAITING


async def test_the_follow_up_stays_blocked_while_the_running_one_backs_off(q: Desk) -> None:
    await q.put_one("a", unique=KEEP_LAST)
    running = await q.take()
    await q.put_one("b", unique=KEEP_LAST)
    await q.settle(retry(running, SECOND))
    assert await q.state("b") is State.BLOCKED
    result = await q.put_one("c", unique=KEEP_LAST, payload=b"3")
    assert (result.id, result.duplicate) == ("b", True)
    q.clock.advance(SECOND)
    await q.settle(complete(await q.take()))
    lease = await q.take()
    assert (lease.id, lease.payload) == ("b", b"3")


async def test_the_follow_up_holds_the_lock_once_released(q: Desk) -> None:
    await q.put_one("a", unique=KEEP_LAST)
    running = await q.take()
    await q.put_one("b", unique=KEEP_LAST)
    await q.settle(complete(running))
    assert (await q.put_one("c", unique=KEEP_LAST)).id == "b"
    second = await q.take()
    result = await q.put_one("d", unique=KEEP_LAST)
    assert (result.id, result.duplicate, result.state) == ("d", False, State.BLOCKED)
    await q.settle(complete(second))
    assert await q.claim_ids() == ["d"]


async def test_a_cancelled_follow_up_makes_room_for_another(q: Desk) -> None:
    await q.put_one("a", unique=KEEP_LAST)
    running = await q.take()
    await q.put_one("b", unique=KEEP_LAST)
    assert await q.alter(Cancel(job=q.key("b")))
    result = await q.put_one("c", unique=KEEP_LAST)
    assert (result.id, result.duplicate, result.state) == ("c", False, State.BLOCKED)
    await q.settle(complete(running))
    assert await q.claim_ids() == ["c"]


async def test_a_follow_up_with_a_delay_begins_it_when_released(q: Desk) -> None:
    await q.put_one("a", unique=KEEP_LAST)
    running = await q.take()
    await q.put_one("b", unique=KEEP_LAST, delay_ms=5 * SECOND)
    q.clock.advance(4 * SECOND)
    await q.settle(complete(running))
    record = await q.get("b")
    assert (record.state, record.due_ms) == (State.DELAYED, q.clock.now_ms + 5 * SECOND)


async def test_keep_last_is_free_when_all_have_ended(q: Desk) -> None:
    await q.run("a", unique=KEEP_LAST)
    result = await q.put_one("b", unique=KEEP_LAST)
    assert (result.id, result.duplicate, result.state) == ("b", False, State.WAITING)
