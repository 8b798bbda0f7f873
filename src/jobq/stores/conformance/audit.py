"""What must hold of a queue whatever was done to it: the log tells a complete and legal story, and counts agree with states."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

from jobq.core.event_records import EventRecord
from jobq.core.records import JobKey, JobRecord, QueueName
from jobq.core.states import ENDED, Kind, QueueKind, State, legal
from jobq.stores.base import Store
from jobq.stores.conformance.kit import read_all, read_log, tally

BIRTHS = frozenset({Kind.ACCEPTED, Kind.RERUN})


async def audit(store: Store, queue: QueueName) -> None:
    """Bring upkeep to its end, then compare the log, the records and the counters of a queue."""
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
        if isinstance(event.kind, Kind):  # neither a gap nor something done to the queue
            stories[event.job].append(event)
    return dict(stories)


def check_numbers(events: list[EventRecord]) -> None:
    """Every shard numbers its events from 1 without gaps. A `gap` has the number of the last event that was dropped."""
    last: dict[int, int] = defaultdict(int)
    for event in events:
        told = f"{event.kind} of {event.job or 'the queue'} has number {event.number} in shard {event.shard}"
        assert event.kind == "gap" or event.number == last[event.shard] + 1, (
            f"{told}, after {last[event.shard]}"
        )
        last[event.shard] = event.number
        if isinstance(event.kind, QueueKind):
            assert event.shard == 0, told
            assert (event.job, event.state, event.previous) == ("", None, None), told


def check_story(story: list[EventRecord]) -> None:
    """A job's events follow each other legally, count right, and end each life at most once."""
    first = story[0]
    assert first.kind is Kind.ACCEPTED, f"{first.job} begins with {first.kind}"
    for event in story:
        check_event(event)
    for before, event in pairwise(story):
        check_step(before, event)


def check_event(event: EventRecord) -> None:
    """One event, by itself."""
    told = f"{event.job}: {event.kind} {event.previous} → {event.state}"
    assert isinstance(event.kind, Kind), told
    assert event.state is not None, told
    assert legal(event.kind, event.previous, event.state), f"illegal: {told}"
    assert event.name, told
    assert event.created_ms <= event.at_ms, told
    if event.state is State.ACTIVE:
        assert event.attempt >= 1, told
        assert event.worker is not None, told
        assert event.started_ms == event.at_ms, told
    if event.state in ENDED:
        assert event.finished_ms == event.at_ms, told
    else:
        assert event.finished_ms is None, told
    if event.kind is Kind.FAILED or event.kind is Kind.CANCELLED:
        assert event.reason, told
    if event.state is State.DELAYED:
        assert event.due_ms is not None, told
        # One that is due and not yet promoted may still be given new arguments or another priority.
        assert event.due_ms >= event.at_ms or event.kind is Kind.CHANGED, told


def check_step(before: EventRecord, event: EventRecord) -> None:
    """One event after another of the same job."""
    told = f"{event.job}: {before.kind} → {before.state}, then {event.kind} {event.previous} → {event.state}"
    assert event.at_ms >= before.at_ms, told
    if (
        event.kind is Kind.ACCEPTED
    ):  # the id was free: its record had ended, and was cancelled or gone
        assert before.state in ENDED, told
        return
    assert event.previous is before.state, told
    assert (event.created_ms, event.name, event.key) == (
        before.created_ms,
        before.name,
        before.key,
    ), told
    assert event.life == before.life + (event.kind is Kind.RERUN), told
    assert event.attempt == before.attempt + (event.kind is Kind.STARTED), told
    if event.kind is Kind.RERUN:
        assert event.failures == event.stalls == 0, told
        return
    ran_badly = event.kind is Kind.RETRIED or (
        event.kind is Kind.FAILED and event.previous is State.ACTIVE
    )
    stalled = event.kind is Kind.STALLED or (
        event.kind is Kind.FAILED and event.reason == "stalled"
    )
    if event.kind is not Kind.CANCELLED:  # a run that was asked to stop may have failed or stalled
        assert event.failures == before.failures + (ran_badly and not stalled), told
        assert event.stalls == before.stalls + stalled, told


def check_record(record: JobRecord | None, last: EventRecord) -> None:
    """The record says what the job's last event says; only an ended one may be gone."""
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
    told = (
        last.state,
        last.life,
        last.attempt,
        last.failures,
        last.stalls,
        last.name,
        last.key,
        last.created_ms,
    )
    assert seen == told, f"{record.id}: the record says {seen}, its last event {told}"


async def check_counts(store: Store, queue: QueueName, records: dict[str, JobRecord]) -> None:
    """The counters agree with the records, in sum and one by one, and with what `get` says."""
    counts = {state: n for state, n in (await store.count(queue)).items() if n}
    assert counts == tally(list(records.values())), (
        f"counters {counts}, records {tally(list(records.values()))}"
    )
    got = await store.get([JobKey(queue, id) for id in records])
    assert [None if r is None else r.state for r in got] == [r.state for r in records.values()]
