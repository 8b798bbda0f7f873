"""A job's events and record in one line each, to compare what stores did."""

from __future__ import annotations

from jobq.core.records.events import EventRecord
from jobq.core.records.jobs import JobRecord


def of_jobs(events: list[EventRecord]) -> list[EventRecord]:
    """Without what was done to the queue itself."""
    return [event for event in events if event.job]


def described(event: EventRecord) -> str:
    error = event.error.partition(":")[0] if event.error else "-"
    return (
        f"{event.kind} {event.previous or '-'} → {event.state} life {event.life} "
        f"attempt {event.attempt} failures {event.failures} stalls {event.stalls} "
        f"reason {event.reason or '-'} error {error}"
    )


def kept(record: JobRecord | None) -> str:
    if record is None:
        return "gone"
    failure = record.failure and (
        record.failure.reason,
        record.failure.type,
        record.failure.attempt,
    )
    return (
        f"kept as {record.state}, result {record.result!r}, failure {failure}, "
        f"reason {record.reason}, saved {record.saved!r}"
    )
