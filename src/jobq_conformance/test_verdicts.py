"""Failures that the store itself records: the same words, types and fingerprints on every store."""

from __future__ import annotations

import pytest

from jobq.core.records.commands import Cancel
from jobq.core.records.jobs import Failure
from jobq.core.records.queues import QueueConfig
from jobq.core.records.states import State
from jobq.core.rules import outcomes
from jobq.core.rules.outcomes import ChildEnd
from jobq_conformance.families import family
from jobq_conformance.kit import LEASE, SECOND, Desk, complete, fail, read_all, retry


async def own_failure(q: Desk, id: str) -> Failure:
    failure = (await q.get(id)).failure
    assert failure is not None
    return failure


async def ended(q: Desk, id: str) -> ChildEnd:
    record = await q.get(id)
    return ChildEnd(
        id, record.name, record.state, record.failure, record.attempt, record.finished_ms or 0
    )


async def test_a_stall_too_many_fails_the_job_as_core_says(q: Desk) -> None:
    await q.put_one("a", max_stalls=1)
    for _ in range(2):
        await q.take("w7")
        q.clock.advance(LEASE)
        await q.tick()
    expected = outcomes.stall_failure(
        stalls=2, max_stalls=1, worker="w7", attempt=2, now_ms=q.clock.now_ms
    )
    assert await own_failure(q, "a") == expected
    event = await q.last_event("a")
    assert (event.reason, event.error, event.fingerprint) == (
        "stalled",
        outcomes.error_text(expected),
        "stalled",
    )


async def test_the_event_of_a_survived_stall_has_its_reason(q: Desk) -> None:
    await q.put("a")
    await q.take()
    q.clock.advance(LEASE)
    await q.tick()
    event = await q.last_event("a")
    assert (event.kind, event.reason, event.error) == ("stalled", "stalled", None)


@pytest.mark.parametrize("ttl_ms", [1_500, 60 * SECOND, 1])
async def test_an_expired_job_fails_as_core_says(q: Desk, ttl_ms: int) -> None:
    await q.put_one("a", ttl_ms=ttl_ms)
    q.clock.advance(ttl_ms)
    await q.tick()
    expected = outcomes.ttl_failure(ttl_ms=ttl_ms, attempt=0, now_ms=q.clock.now_ms)
    assert await own_failure(q, "a") == expected
    event = await q.last_event("a")
    assert (event.reason, event.error, event.fingerprint) == (
        "expired",
        outcomes.error_text(expected),
        "expired",
    )


async def test_a_failure_is_kept_with_the_jobs_attempt_and_the_stores_time(q: Desk) -> None:
    await q.put("a")
    await q.settle(retry(await q.take()))
    lease = await q.take()
    q.clock.advance(SECOND)
    await q.settle(fail(lease))
    failure = await own_failure(q, "a")
    assert (failure.attempt, failure.at_ms) == (2, q.clock.now_ms)


async def test_the_event_of_a_cancelled_run_that_failed_has_its_error(q: Desk) -> None:
    await q.put("a")
    lease = await q.take()
    await q.alter(Cancel(job=q.key("a")))
    await q.settle(fail(lease, "boom"))
    event = await q.last_event("a")
    assert (event.kind, event.reason, event.error, event.failures) == (
        "cancelled",
        "cancelled",
        "ValueError: boom",
        1,
    )


# ── children ──────────────────────────────────────────────────────────────────────────────────────


async def test_continue_hands_on_the_childs_own_failure(q: Desk) -> None:
    await family(q, "a", on_child_failure="continue")
    await q.settle(retry(await q.take()))
    await q.settle(fail(await q.take("w2"), "no such tenant", "rejected"))
    (given,) = (await q.take()).inputs
    failure = await own_failure(q, "a")
    assert given.failure == failure
    assert (failure.reason, failure.message, failure.traceback, failure.attempt) == (
        "rejected",
        "no such tenant",
        "Traceback …",
        2,
    )


async def test_continue_hands_on_the_failure_of_a_child_that_had_failed_before(q: Desk) -> None:
    await q.put("a")
    await q.settle(fail(await q.take(), "no such tenant"))
    q.clock.advance(SECOND)
    await q.put_one("p", after=(q.edge("a"),), on_child_failure="continue")
    (given,) = (await q.take()).inputs
    assert given.failure == await own_failure(q, "a")


@pytest.mark.parametrize("way", ["stalled", "expired"])
async def test_continue_hands_on_what_the_store_itself_said_of_the_child(q: Desk, way: str) -> None:
    await q.store.put(
        [
            q.spec("a", max_stalls=0, ttl_ms=SECOND),
            q.spec("p", after=(q.edge("a"),), on_child_failure="continue"),
        ]
    )
    if way == "stalled":
        await q.take(lease_ms=SECOND)
    q.clock.advance(2 * SECOND)
    await q.tick()
    (given,) = (await q.take()).inputs
    assert given.failure == await own_failure(q, "a")
    assert given.failure is not None
    assert given.failure.reason == way


async def test_continue_says_that_a_child_was_cancelled(q: Desk) -> None:
    await family(q, "a", on_child_failure="continue")
    await q.alter(Cancel(job=q.key("a")))
    (given,) = (await q.take()).inputs
    assert given.failure == outcomes.failure_for_parent("continue", await ended(q, "a"))
    assert given.failure is not None
    assert (given.failure.reason, given.failure.type) == ("child", "JobCancelled")


async def test_a_parent_fails_as_core_says_and_names_the_child(q: Desk) -> None:
    await family(q, "a")
    await q.settle(fail(await q.take(), "no such tenant"))
    expected = outcomes.parent_failure(await ended(q, "a"), attempt=0, now_ms=q.clock.now_ms)
    assert await own_failure(q, "p") == expected
    assert (expected.reason, expected.type) == ("child", "ValueError")
    assert "job a (task)" in expected.message
    event = await q.last_event("p")
    assert (event.reason, event.error, event.fingerprint) == (
        "child",
        outcomes.error_text(expected),
        "f00d",
    )


async def test_a_parent_of_a_cancelled_child_fails_as_core_says(q: Desk) -> None:
    await family(q, "a")
    await q.alter(Cancel(job=q.key("a")))
    expected = outcomes.parent_failure(await ended(q, "a"), attempt=0, now_ms=q.clock.now_ms)
    assert await own_failure(q, "p") == expected


@pytest.mark.parametrize("message", ["ä" * 1_995, "𝄞" * 600, "e" * 499 + "ü" + "x" * 40])
async def test_long_messages_are_cut_between_characters(q: Desk, message: str) -> None:
    await family(q, "a")
    await q.settle(fail(await q.take(), message))
    expected = outcomes.parent_failure(await ended(q, "a"), attempt=0, now_ms=q.clock.now_ms)
    assert await own_failure(q, "p") == expected
    assert [(await q.last_event(id)).error for id in ("a", "p")] == [
        outcomes.error_text(await own_failure(q, "a")),
        outcomes.error_text(expected),
    ]


# ── dead letters ──────────────────────────────────────────────────────────────────────────────────


async def test_a_dead_letter_carries_the_failure_and_the_attempts_of_the_original(q: Desk) -> None:
    graves = q.beside("graves")
    await q.store.declare(q.queue, QueueConfig(dead_letters="graves"))
    await q.put("a")
    await q.settle(retry(await q.take()))
    await q.settle(fail(await q.take("w2"), "bad"))
    await q.tick()
    (copy,) = await read_all(q.store, graves.queue)
    copy = await graves.get(copy.id)
    assert copy.failure == await own_failure(q, "a")
    assert copy.failure is not None
    assert (copy.failure.message, copy.failure.attempt, copy.failure.worker) == ("bad", 2, "w2")
    assert (copy.attempt, copy.failures) == (0, 0)
    await graves.settle(fail(await graves.take(), "worse"))
    failure = await own_failure(graves, copy.id)
    assert (failure.message, failure.attempt) == ("worse", 1)


async def test_a_dead_letter_of_a_job_that_never_started_carries_why(q: Desk) -> None:
    graves = q.beside("graves")
    await q.store.declare(q.queue, QueueConfig(dead_letters="graves"))
    await q.put_one("a", ttl_ms=SECOND)
    q.clock.advance(SECOND)
    await q.tick()
    await q.tick()
    (copy,) = await read_all(q.store, graves.queue)
    assert (await graves.get(copy.id)).failure == await own_failure(q, "a")
    await graves.settle(complete(await graves.take()))


async def test_a_dead_letter_of_a_long_id_has_an_id_of_the_allowed_length(q: Desk) -> None:
    graves = q.beside("graves")
    await q.store.declare(q.queue, QueueConfig(dead_letters="graves"))
    long = "ü" * 256
    await q.put_one(long)
    await q.settle(fail(await q.take()))
    await q.tick()
    (copy,) = await read_all(q.store, graves.queue)
    assert copy.id == f"work/{long}/0"[-256:]
    assert copy.state is State.WAITING
