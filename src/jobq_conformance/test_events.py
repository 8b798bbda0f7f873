"""Events: every transition is recorded, in order, and can be read again from any position."""

from __future__ import annotations

import pytest

from jobq.core.records.commands import Cancel, Rerun
from jobq.core.records.jobs import UniqueSpec
from jobq.core.records.states import State
from jobq_conformance.kit import (
    DAY,
    SECOND,
    Desk,
    complete,
    fail,
    failure,
    read_log,
    release,
    retry,
    snooze,
)
from jobq_conformance.roles import needs

pytestmark = needs("events")


async def a_full_life(q: Desk) -> None:
    """Every kind of step that a plain job can take."""
    await q.put_one("a", delay_ms=SECOND, name="charge")
    q.clock.advance(SECOND)
    await q.settle(retry(await q.take("w1"), SECOND), worker="w1")
    q.clock.advance(SECOND)
    await q.settle(snooze(await q.take("w1"), SECOND), worker="w1")
    q.clock.advance(SECOND)
    await q.settle(release(await q.take("w1")), worker="w1")
    await q.take("w1", lease_ms=SECOND)
    q.clock.advance(2 * SECOND)
    await q.settle(fail(await q.take("w2")), worker="w2")
    await q.alter(Rerun(job=q.key("a")))
    await q.settle(complete(await q.take("w2")), worker="w2")


STORY = [
    "accepted",
    "promoted",
    "started",
    "retried",
    "promoted",
    "started",
    "snoozed",
    "promoted",
    "started",
    "released",
    "started",
    "stalled",
    "started",
    "failed",
    "rerun",
    "started",
    "completed",
]


async def test_every_transition_is_recorded_in_order(q: Desk) -> None:
    await a_full_life(q)
    assert await q.kinds("a") == STORY


async def test_an_event_is_self_contained(q: Desk) -> None:
    born = q.clock.now_ms
    await q.put_one("a", delay_ms=SECOND, name="charge")
    q.clock.advance(SECOND)
    lease = await q.take("bee")
    q.clock.advance(SECOND)
    await q.settle(fail(lease, "no such tenant"), worker="bee")
    accepted, promoted, started, failed = await q.events("a")
    assert {
        (e.queue, e.job, e.name, e.key, e.life, e.created_ms)
        for e in (accepted, promoted, started, failed)
    } == {(q.queue, "a", "charge", None, 0, born)}
    assert (accepted.state, accepted.previous, accepted.at_ms, accepted.due_ms) == (
        State.DELAYED,
        None,
        born,
        born + SECOND,
    )
    assert (promoted.state, promoted.previous, promoted.at_ms) == (
        State.WAITING,
        State.DELAYED,
        born + SECOND,
    )
    assert (started.attempt, started.worker, started.started_ms, started.due_ms) == (
        1,
        "bee",
        born + SECOND,
        born + SECOND,
    )
    assert (failed.attempt, failed.failures, failed.worker, failed.reason) == (1, 1, "bee", "error")
    assert (failed.started_ms, failed.finished_ms) == (born + SECOND, born + 2 * SECOND)
    assert failed.fingerprint == failure(lease).fingerprint
    assert failed.error is not None
    assert "no such tenant" in failed.error


async def test_a_retry_tells_its_error_and_its_next_time(q: Desk) -> None:
    await q.put("a")
    await q.settle(retry(await q.take(), 5 * SECOND, "flaky"))
    event = await q.last_event("a")
    assert (event.kind, event.reason, event.failures, event.due_ms) == (
        "retried",
        "error",
        1,
        q.clock.now_ms + 5 * SECOND,
    )
    assert event.error is not None
    assert "flaky" in event.error
    assert event.fingerprint == "f00d"


async def test_completions_of_every_kind_in_one_exchange_are_all_recorded(q: Desk) -> None:
    await q.put("a", "b")
    await q.put_one("locked", unique=UniqueSpec(lock="one"))
    await q.put("c", "child")
    await q.put_one("parent", after=(q.edge("child"),))
    await q.put("d", "e")
    await q.settle(*[complete(lease) for lease in await q.claim(10)])
    completed = [e.job for e in await q.events() if e.kind == "completed"]
    assert sorted(completed) == ["a", "b", "c", "child", "d", "e", "locked"]


async def test_a_duplicate_writes_no_event(q: Desk) -> None:
    await q.put("a")
    await q.put("a")
    assert await q.kinds("a") == ["accepted"]


async def test_a_command_that_did_not_apply_writes_no_event(q: Desk) -> None:
    await q.put("a")
    before = len(await q.events())
    await q.store.alter([Rerun(job=q.key("a")), Cancel(job=q.key("nobody"))])
    assert len(await q.events()) == before


async def test_a_reused_id_tells_two_lives(q: Desk) -> None:
    await q.put("a")
    await q.alter(Cancel(job=q.key("a")))
    await q.put("a")
    assert [(str(e.kind), e.life) for e in await q.events("a")] == [
        ("accepted", 0),
        ("cancelled", 0),
        ("accepted", 1),
    ]


async def test_reading_from_none_gives_the_present_end(q: Desk) -> None:
    await q.put("a")
    page = await q.store.read_events(q.queue)
    assert page.events == ()
    assert (await q.store.read_events(q.queue, after=page.position)).events == ()
    await q.put("b")
    later = await q.store.read_events(q.queue, after=page.position)
    assert [(e.job, str(e.kind)) for e in later.events] == [("b", "accepted")]


async def test_the_end_of_an_empty_log_is_a_position_too(q: Desk) -> None:
    page = await q.store.read_events(q.queue)
    assert page.events == ()
    await q.put("a")
    assert [e.job for e in (await q.store.read_events(q.queue, after=page.position)).events] == [
        "a"
    ]


async def test_the_log_of_an_unknown_queue_is_empty(q: Desk) -> None:
    page = await q.store.read_events(q.beside("nowhere").queue, after="0")
    assert page.events == ()


async def test_replay_resumes_after_any_position(q: Desk) -> None:
    for n in range(10):
        await q.put(f"j{n}")
    await q.settle(*(complete(lease) for lease in await q.claim(10)))
    whole = await read_log(q.store, q.queue, limit=1)
    assert [e.job for e in whole if e.kind == "accepted"] == [f"j{n}" for n in range(10)]
    assert len(whole) == 30
    for n, event in enumerate(whole):
        rest = await read_log(q.store, q.queue, after=event.position)
        assert rest == [e for e in whole[n + 1 :] if e.position != event.position]


async def test_pages_are_about_as_long_as_asked(q: Desk) -> None:
    for n in range(50):
        await q.put(f"j{n}")
    page = await q.store.read_events(q.queue, after="0", limit=10)
    assert 1 <= len(page.events) <= 20
    assert page.position == page.events[-1].position


async def test_event_ids_are_unique_and_the_same_for_every_reader(
    q_twice: tuple[Desk, Desk],
) -> None:
    first, second = q_twice
    await first.put(*(f"j{n}" for n in range(20)))
    await second.settle(*(complete(lease) for lease in await second.claim(20)))
    mine, theirs = await first.events(), await second.events()
    assert mine == theirs
    assert len({e.id for e in mine}) == 60


async def test_event_ids_are_unique_across_queues(q: Desk) -> None:
    beside = q.beside("other")
    await q.put("a")
    await beside.put("a")
    assert {e.id for e in await q.events()}.isdisjoint(e.id for e in await beside.events())


async def test_queues_have_logs_of_their_own(q: Desk) -> None:
    beside = q.beside("other")
    await q.store.put([q.spec("a"), beside.spec("b")])
    assert [e.job for e in await q.events()] == ["a"]
    assert [e.job for e in await beside.events()] == ["b"]


async def test_one_call_may_record_many_events(q: Desk) -> None:
    await q.put(*(f"j{n:04}" for n in range(1000)))
    assert [e.job for e in await q.events()] == [f"j{n:04}" for n in range(1000)]


# ── readers ───────────────────────────────────────────────────────────────────────────────────────


async def test_the_position_of_a_reader_is_remembered(q_twice: tuple[Desk, Desk]) -> None:
    first, second = q_twice
    await first.put("a")
    page = await first.store.read_events(first.queue, after="0")
    assert await first.store.ack_events(first.queue, "relay", None) is None
    assert await first.store.ack_events(first.queue, "relay", page.position) == page.position
    assert await second.store.ack_events(second.queue, "relay", None) == page.position
    assert await second.store.ack_events(second.queue, "another", None) is None


async def test_a_removed_reader_is_not_listed_and_has_no_position(q: Desk) -> None:
    await q.put("a")
    position = (await q.store.read_events(q.queue, after="0")).position
    await q.store.ack_events(q.queue, "relay", position)
    await q.store.ack_events(q.queue, "trial", "0")
    assert await q.store.readers(q.queue) == {"relay": position, "trial": "0"}
    assert await q.store.remove_reader(q.queue, "trial")
    assert not await q.store.remove_reader(q.queue, "trial")
    assert await q.store.readers(q.queue) == {"relay": position}
    assert await q.store.ack_events(q.queue, "trial", None) is None


async def test_a_position_does_not_move_back(q: Desk) -> None:
    await q.put("a")
    early = (await q.store.read_events(q.queue, after="0")).position
    await q.put("b")
    late = (await q.store.read_events(q.queue, after=early)).position
    await q.store.ack_events(q.queue, "relay", late)
    assert await q.store.ack_events(q.queue, "relay", early) == late


@pytest.mark.parametrize("days", [1, 365])
async def test_what_a_reader_has_not_acknowledged_is_kept(q: Desk, days: int) -> None:
    await q.put("a")
    position = (await q.store.read_events(q.queue, after="0")).position
    await q.store.ack_events(q.queue, "relay", position)
    await q.settle(complete(await q.take()))
    q.clock.advance(days * DAY)
    await q.tick()
    assert [str(e.kind) for e in await read_log(q.store, q.queue, after=position)] == [
        "started",
        "completed",
    ]
    q.audited.clear()  # what was acknowledged may have been trimmed


async def test_a_reader_registered_at_the_beginning_keeps_all(q: Desk) -> None:
    await q.store.ack_events(q.queue, "relay", "0")
    await a_full_life(q)
    q.clock.advance(365 * DAY)
    await q.tick()
    assert await q.kinds("a") == STORY


async def test_replay_goes_on_after_the_jobs_records_are_gone(q: Desk) -> None:
    await q.run("a", result_ttl_ms=SECOND)
    q.clock.advance(2 * SECOND)
    await q.tick()
    assert await q.kinds("a") == ["accepted", "started", "completed"]
