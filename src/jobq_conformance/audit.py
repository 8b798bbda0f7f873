"""What must be true of a queue after any test.

The log is complete and legal, and counters and records agree with it.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

from jobq.core.records.events import EventRecord
from jobq.core.records.jobs import JobKey, JobRecord, QueueName
from jobq.core.records.states import ENDED, Kind, QueueKind, State, legal
from jobq.stores.base import Store
from jobq_conformance.kit import read_all, read_log, tally


async def audit(store: Store, queue: QueueName) -> None:
    """Finish the upkeep, then compare the log, the records and the counters of a queue."""
    while await store.tick(limit=500) == 500:
        pass
    events = await read_log(store, queue)
    check_numbers(events)
    stories = stories_of(events)
    records = {r.id: r for r in await read_all(store, queue)}
    for id, story in stories.items():
        check_story(story)
        check_record(records.get(id), story[-1])
    assert records.keys() <= stories.keys(), (
        f"records without a story: {records.keys() - stories.keys()}"
    )
    await check_counts(store, queue, records)


def stories_of(events: list[EventRecord]) -> dict[str, list[EventRecord]]:
    """The events of each job, in order."""
    ids = [e.id for e in events]
    assert len(ids) == len(set(ids)), "event ids repeat"
    stories: dict[str, list[EventRecord]] = defaultdict(list)
    for event in events:
        if isinstance(event.kind, Kind):  # neither a gap nor an operation on the queue
            stories[event.job].append(event)
    return dict(stories)


def check_numbers(events: list[EventRecord]) -> None:
    """Every shard numbers its events from 1 without gaps.

    A `gap` has the number of the last event that was dropped.
    """
    last: dict[int, int] = defaultdict(int)
    for event in events:
        message = (
            f"{event.kind} of {event.job or 'the queue'} has number {event.number} "
            f"in shard {event.shard}"
        )
        assert event.kind == "gap" or event.number == last[event.shard] + 1, (
            f"{message}, after {last[event.shard]}"
        )
        last[event.shard] = event.number
        if isinstance(event.kind, QueueKind):
            assert event.shard == 0, message
            assert (event.job, event.state, event.previous) == ("", None, None), message


def check_story(story: list[EventRecord]) -> None:
    """The events of a job follow each other legally, count correctly, and end each life at most
    once.
    """
    first = story[0]
    assert first.kind is Kind.ACCEPTED, f"{first.job} begins with {first.kind}"
    for event in story:
        check_event(event)
    for before, event in pairwise(story):
        check_step(before, event)


def check_event(event: EventRecord) -> None:
    """Check one event by itself."""
    message = f"{event.job}: {event.kind} {event.previous} → {event.state}"
    assert isinstance(event.kind, Kind), message
    assert event.state is not None, message
    assert legal(event.kind, event.previous, event.state), f"illegal: {message}"
    assert event.name, message
    assert event.created_ms <= event.at_ms, message
    if event.state is State.ACTIVE:
        assert event.attempt >= 1, message
        assert event.worker is not None, message
        assert event.started_ms == event.at_ms, message
    if event.state in ENDED:
        assert event.finished_ms == event.at_ms, message
    else:
        assert event.finished_ms is None, message
    if event.kind is Kind.FAILED or event.kind is Kind.CANCELLED:
        assert event.reason, message
    if event.state is State.DELAYED:
        assert event.due_ms is not None, message
        # A job that is due and not yet promoted may still get new arguments or another priority.
        assert event.due_ms >= event.at_ms or event.kind is Kind.CHANGED, message


def check_step(before: EventRecord, event: EventRecord) -> None:
    """Check one event of a job against the event before it."""
    message = (
        f"{event.job}: {before.kind} → {before.state}, "
        f"then {event.kind} {event.previous} → {event.state}"
    )
    assert event.at_ms >= before.at_ms, message
    if event.kind is Kind.ACCEPTED:  # the id was free: its job was cancelled, or its record gone
        assert before.state in ENDED, message
        return
    assert event.previous is before.state, message
    assert (event.created_ms, event.name, event.key) == (
        before.created_ms,
        before.name,
        before.key,
    ), message
    assert event.life == before.life + (event.kind is Kind.RERUN), message
    assert event.attempt == before.attempt + (event.kind is Kind.STARTED), message
    if event.kind is Kind.RERUN:
        assert event.failures == event.stalls == 0, message
        return
    ran_badly = event.kind is Kind.RETRIED or (
        event.kind is Kind.FAILED and event.previous is State.ACTIVE
    )
    stalled = event.kind is Kind.STALLED or (
        event.kind is Kind.FAILED and event.reason == "stalled"
    )
    if event.kind is not Kind.CANCELLED:  # a run that was asked to stop may have failed or stalled
        assert event.failures == before.failures + (ran_badly and not stalled), message
        assert event.stalls == before.stalls + stalled, message


def check_record(record: JobRecord | None, last: EventRecord) -> None:
    """The record agrees with the job's last event. Only the record of an ended job may be gone."""
    if record is None:
        assert last.state in ENDED, f"{last.job} was {last.state} and is lost"
        return
    seen = (
        record.state,
        record.life,
        record.attempt,
        record.failures,
        record.stalls,
        record.name,
        record.key,
        record.created_ms,
    )
    expected = (
        last.state,
        last.life,
        last.attempt,
        last.failures,
        last.stalls,
        last.name,
        last.key,
        last.created_ms,
    )
    assert seen == expected, f"{record.id}: the record has {seen}, its last event {expected}"


async def check_counts(store: Store, queue: QueueName, records: dict[str, JobRecord]) -> None:
    """The counters agree with the records, and so does `get`."""
    counts = {state: n for state, n in (await store.count(queue)).items() if n}
    assert counts == tally(list(records.values())), (
        f"counters {counts}, records {tally(list(records.values()))}"
    )
    got = await store.get([JobKey(queue, id) for id in records])
    assert [None if r is None else r.state for r in got] == [r.state for r in records.values()]
