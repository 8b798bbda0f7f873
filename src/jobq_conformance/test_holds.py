"""Holds of a queue: no job starts before a time; holds are listed, and can be lifted."""

from __future__ import annotations

import asyncio

from jobq.core.records.queues import HoldsRecord, Limits, QueueConfig, Window
from jobq.core.records.states import State
from jobq_conformance.holding import held, hold_events, put_keyed
from jobq_conformance.kit import (
    HOUR,
    LEASE,
    MINUTE,
    SECOND,
    Desk,
    complete,
    hold,
    ref,
)
from jobq_conformance.roles import needs

pytestmark = needs("limits", "keyed")


# ── a queue ───────────────────────────────────────────────────────────────────────────────────────


async def test_a_held_queue_starts_nothing_until_its_time_has_come(q: Desk) -> None:
    await q.put("a", "b")
    await q.store.hold(q.queue, MINUTE)
    settled = await q.exchange(then=q.claiming(5))
    assert (settled.leases, settled.next_due_ms) == ((), MINUTE)
    assert await held(q) == (MINUTE, {})
    q.clock.advance(MINUTE - 1)
    assert await q.claim() == []
    q.clock.advance(1)
    assert await held(q) == (None, {})
    assert await q.claim_ids() == ["a", "b"]


async def test_a_queue_that_is_not_there_yet_can_be_held(q: Desk) -> None:
    await q.store.hold(q.queue, MINUTE)
    await q.put("a")
    assert await q.claim() == []
    assert await held(q) == (MINUTE, {})


async def test_looking_for_holds_makes_no_queue(q: Desk) -> None:
    assert await q.store.holds(q.queue) == HoldsRecord()
    assert not await q.store.release_hold(q.queue)
    assert await q.store.queues(q.queue.tenant) == []


async def test_running_jobs_go_on_and_new_ones_are_accepted_meanwhile(q: Desk) -> None:
    await q.put("a")
    lease = await q.take()
    await q.store.hold(q.queue, MINUTE)
    await q.put("b")
    assert await q.store.extend([ref(lease)], lease_ms=LEASE) == ["held"]
    await q.settle(complete(lease))
    assert await q.states("a", "b") == ["completed", "waiting"]


async def test_of_two_holds_the_later_end_stays(q: Desk) -> None:
    await q.put("a")
    await q.store.hold(q.queue, MINUTE)
    await q.store.hold(q.queue, SECOND)
    assert await held(q) == (MINUTE, {})
    await q.store.hold(q.queue, HOUR)
    assert await held(q) == (HOUR, {})


async def test_a_released_queue_starts_at_once(q: Desk) -> None:
    await q.put("a")
    await q.store.hold(q.queue, HOUR)
    assert await q.store.release_hold(q.queue)
    assert await held(q) == (None, {})
    assert await q.claim_ids() == ["a"]
    assert not await q.store.release_hold(q.queue)


async def test_a_hold_that_is_over_cannot_be_released(q: Desk) -> None:
    await q.store.hold(q.queue, MINUTE)
    q.clock.advance(MINUTE)
    assert not await q.store.release_hold(q.queue)
    assert await hold_events(q) == [("held", f"{MINUTE} ms", None)]


async def test_a_hold_by_a_handler_shows_and_can_be_lifted(q: Desk) -> None:
    await q.put("a", "b")
    await q.settle(hold(await q.take(), MINUTE))
    assert await held(q) == (MINUTE, {})
    assert await q.store.release_hold(q.queue)
    assert await q.claim_ids() == ["a", "b"]


async def test_a_shorter_hold_by_a_handler_does_not_cut_a_longer_one_short(q: Desk) -> None:
    await q.put("a")
    lease = await q.take()
    await q.store.hold(q.queue, HOUR)
    await q.settle(hold(lease, SECOND))
    assert await held(q) == (HOUR, {})


async def test_the_last_lease_of_a_held_queue_ends_without_ending_the_hold(q: Desk) -> None:
    await q.put("a")
    lease = await q.take()
    await q.store.hold(q.queue, MINUTE)
    await q.settle(complete(lease))
    await q.put("b")
    assert await q.claim() == []
    assert await held(q) == (MINUTE, {})


async def test_a_lease_that_expires_under_a_hold_comes_back_and_waits(q: Desk) -> None:
    await q.put("a")
    await q.take(lease_ms=SECOND)
    await q.store.hold(q.queue, MINUTE)
    q.clock.advance(2 * SECOND)
    assert await q.claim() == []
    assert await q.state("a") is State.WAITING
    q.clock.advance(MINUTE)
    assert await q.claim_ids() == ["a"]


async def test_releasing_wakes_a_sleeper(q: Desk) -> None:
    await q.put("a")
    await q.store.hold(q.queue, HOUR)
    assert (await q.exchange(then=q.claiming(), worker="w1")).asleep
    sleeping = asyncio.create_task(
        q.store.sleep([q.queue], worker="w1", slots=1, timeout_ms=20_000)
    )
    await asyncio.sleep(0)
    assert await q.store.release_hold(q.queue)
    assert await sleeping
    assert await q.claim_ids() == ["a"]


# ── pause, limits, rates, the clock ───────────────────────────────────────────────────────────────


async def test_resuming_lifts_a_hold_of_the_queue(q: Desk) -> None:
    await q.put("a")
    await q.store.hold(q.queue, HOUR)
    await q.store.pause(q.queue)
    assert await held(q) == (HOUR, {})
    await q.store.resume(q.queue, actor="ada")
    assert await held(q) == (None, {})
    assert await q.claim_ids() == ["a"]
    assert await hold_events(q) == [("held", f"{HOUR} ms", None), ("released_hold", None, "ada")]


async def test_a_queue_that_was_not_paused_can_be_resumed_out_of_a_hold(q: Desk) -> None:
    await q.put("a")
    await q.settle(hold(await q.take(), HOUR))
    await q.store.resume(q.queue)
    assert await q.claim_ids() == ["a"]


async def test_releasing_does_not_resume_a_paused_queue(q: Desk) -> None:
    await q.put("a")
    await q.store.pause(q.queue)
    await q.store.hold(q.queue, HOUR)
    assert await q.store.release_hold(q.queue)
    assert await q.claim() == []


async def test_resuming_leaves_the_holds_of_keys(q: Desk) -> None:
    await put_keyed(q)
    await q.store.hold(q.queue, HOUR, "a")
    await q.store.resume(q.queue)
    assert await held(q) == (None, {"a": HOUR})
    assert await q.claim_ids() == ["b0"]


async def test_resetting_the_limits_of_the_queue_lifts_all_holds(q: Desk) -> None:
    await put_keyed(q)
    await q.store.hold(q.queue, HOUR)
    await q.store.hold(q.queue, HOUR, "a")
    await q.store.set_limits(q.queue, None)
    assert await held(q) == (None, {})
    assert sorted(await q.claim_ids()) == ["a0", "b0"]


async def test_resetting_the_limits_of_a_key_lifts_its_hold_only(q: Desk) -> None:
    await put_keyed(q, keys="abc")
    await q.store.hold(q.queue, HOUR, "a")
    await q.store.hold(q.queue, HOUR, "b")
    await q.store.set_limits(q.queue, None, key="a")
    assert await held(q) == (None, {"b": HOUR})
    assert sorted(await q.claim_ids()) == ["a0", "c0"]


async def test_a_rate_that_is_used_up_is_no_hold(q: Desk) -> None:
    await q.store.declare(q.queue, QueueConfig(limits=Limits(rate=Window(limit=1, per_ms=MINUTE))))
    await q.put("a", "b")
    assert await q.claim_ids() == ["a"]
    assert await q.claim() == []
    assert await held(q) == (None, {})
    assert not await q.store.release_hold(q.queue)
    assert await q.claim() == []


async def test_releasing_a_hold_does_not_let_a_rate_be_exceeded(q: Desk) -> None:
    await q.store.declare(q.queue, QueueConfig(limits=Limits(rate=Window(limit=1, per_ms=MINUTE))))
    await q.put("a", "b")
    await q.settle(complete(await q.take()))
    await q.store.hold(q.queue, HOUR)
    assert await q.store.release_hold(q.queue)
    assert await q.claim() == []
    q.clock.advance(MINUTE)
    assert await q.claim_ids() == ["b"]


async def test_a_rate_that_allows_starts_again_does_not_end_a_hold(q: Desk) -> None:
    await q.store.declare(q.queue, QueueConfig(limits=Limits(rate=Window(limit=1, per_ms=SECOND))))
    await q.put("a", "b")
    await q.settle(complete(await q.take()))
    assert await q.claim() == []
    await q.store.hold(q.queue, MINUTE)
    q.clock.advance(SECOND)
    assert await q.claim() == []
    q.clock.advance(MINUTE)
    assert await q.claim_ids() == ["b"]


async def test_a_hold_is_late_by_its_own_length_at_most_when_the_clock_is_set_back(q: Desk) -> None:
    await put_keyed(q, n=1)
    await q.store.hold(q.queue, MINUTE)
    await q.store.hold(q.queue, MINUTE, "a")
    q.clock.advance(-HOUR)
    await q.tick()
    assert await held(q) == (MINUTE, {"a": MINUTE})
    q.clock.advance(MINUTE)
    assert sorted(await q.claim_ids()) == ["a0", "b0"]


async def test_a_long_hold_is_not_shortened_while_the_clock_goes_on(q: Desk) -> None:
    await put_keyed(q, n=1)
    await q.store.hold(q.queue, HOUR, "a")
    q.clock.advance(MINUTE)
    await q.tick()
    assert await held(q) == (None, {"a": HOUR - MINUTE})
    assert await q.claim_ids() == ["b0"]


# ── the log, and the end of a queue ───────────────────────────────────────────────────────────────


async def test_the_log_tells_who_held_what_and_for_how_long(q: Desk) -> None:
    await put_keyed(q, n=1)
    await q.store.hold(q.queue, MINUTE, actor="ada")
    await q.store.hold(q.queue, SECOND, actor="bob")  # changes nothing
    await q.store.hold(q.queue, MINUTE, "a", actor="ada")
    await q.store.release_hold(q.queue, actor="eve")
    await q.store.release_hold(q.queue, "a", actor="eve")
    await q.store.release_hold(q.queue, "a", actor="eve")
    assert await hold_events(q) == [
        ("held", "60000 ms", "ada"),
        ("held", "60000 ms, key a", "ada"),
        ("released_hold", None, "eve"),
        ("released_hold", "key a", "eve"),
    ]


async def test_an_obliterated_queue_is_not_held(q: Desk) -> None:
    await put_keyed(q, n=1)
    await q.store.hold(q.queue, HOUR)
    await q.store.hold(q.queue, HOUR, "a")
    assert await q.store.obliterate(q.queue)
    assert await held(q) == (None, {})
    await put_keyed(q, n=1)
    assert sorted(await q.claim_ids()) == ["a0", "b0"]


async def test_a_hold_does_not_concern_other_queues(q: Desk) -> None:
    beside = q.beside("other")
    await q.put("a")
    await beside.put("a")
    await q.store.hold(q.queue, HOUR)
    assert await held(beside) == (None, {})
    assert await beside.claim_ids() == ["a"]


async def test_another_handle_sees_and_lifts_a_hold(q_twice: tuple[Desk, Desk]) -> None:
    first, second = q_twice
    await first.put("a")
    await first.store.hold(first.queue, HOUR)
    assert await second.claim() == []
    assert await held(second) == (HOUR, {})
    assert await second.store.release_hold(second.queue)
    assert await first.claim_ids() == ["a"]
