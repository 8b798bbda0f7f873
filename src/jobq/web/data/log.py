"""Reading a queue's event log from its end, or around a time, with few bounded reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf
from typing import Any

from jobq.core.records.event_log import joined, order
from jobq.core.records.events import EventRecord
from jobq.core.records.jobs import JobRecord, QueueName
from jobq.stores.base import Store
from jobq.web.data.view import Shape, View

_ENTRIES = (1, 8, 64, 512)
"""Entries before the end to start at, in turn. An entry has the events of one store call."""
_SPANS_MS = (100, 1_000, 10_000, 100_000, 3_600_000, 86_400_000)
"""The same in ms before the last entry, for stores whose positions are times."""
_PAGES = 4
"""Pages that one read of the end may take."""
_AROUND = 500
"""Events that are read around a time. A busy queue has some thousand per second."""
_SAME_MS = 1_000
"""How much the times of an event and of its job may differ: PostgreSQL sets them apart."""
_MOMENTS = 6
"""Times of one job that are looked up: a few short reads each, 40 at most."""


class LogEntry(Shape, frozen=True, kw_only=True):
    """One event of a queue's log.

    `id` is empty if the entry is made from the job's record, because the log no longer has the
    event. `error` is only the type if payloads are hidden.
    """

    # from core/records/events.py by scripts/event_schemas.py
    id: str
    """Never used for another event. Drop an event whose id you have seen."""
    kind: str
    """What happened. Ignore kinds that you do not know."""
    at_ms: int
    """When it happened, by the store's clock."""
    job: str
    """The job's id. Empty for an operation on a queue, a gap and a mark."""
    name: str
    """The task."""
    key: str | None
    """The concurrency key."""
    attempt: int
    """Runs started so far."""
    state: str | None
    """The job's state after the event. Absent without a job."""
    worker: str | None
    """The worker that made the call; for stalled, the one that noticed."""
    actor: str | None
    """Who gave the command."""
    reason: str | None
    """Why the job failed or was cancelled, or what was done to the queue."""
    error: str | None
    """Type and message of the error."""


def log_entry(view: View, event: EventRecord) -> LogEntry:
    """An event as it is shown."""
    shown: dict[str, Any] = {name: getattr(event, name) for name in LogEntry.__struct_fields__}
    return LogEntry(**{**shown, "error": error_text(view, event.error)})


def error_text(view: View, error: str | None) -> str | None:
    """The error of an event. Its message may contain arguments, so it is hidden with them."""
    return error.partition(":")[0] if error and view.hide_payloads else error


async def tail(store: Store, queue: QueueName, *, want: int = 200) -> list[EventRecord]:
    """About the last `want` events of the log, oldest first."""
    end = (await store.read_events(queue, after=None)).position
    found: list[EventRecord] = []
    for start in _starts(end):
        longer, is_whole = await _until(store, queue, start, end, want)
        if found and not is_whole:
            break  # there are too many events since then: the fewer ones are the newest
        found = longer
        if len(found) >= want or start == "0":
            break
    return found[-want:]


async def _until(
    store: Store, queue: QueueName, start: str, end: str, limit: int
) -> tuple[list[EventRecord], bool]:
    """The events from `start`, and whether they reach the end."""
    found: list[EventRecord] = []
    for _ in range(_PAGES):
        page = await store.read_events(queue, after=start, until=end, limit=limit)
        found += [event for event in page.events if event.kind != "gap"]
        if not page.events or page.position == end:
            return found, True
        start = page.position
    return found, False


def _starts(end: str) -> Iterator[str]:
    offsets = [order(offset) for offset in end.split(",")]
    if any(len(offset) > 1 for offset in offsets):
        for span in _SPANS_MS:
            yield joined([f"{max(0, offset[0] - span)}-0" for offset in offsets])
    else:
        for back in _ENTRIES:
            starts = [max(0, offset[0] - back) for offset in offsets]
            yield joined([str(start) for start in starts]) if any(starts) else "0"


# ── what happened to one job ──────────────────────────────────────────────────────────────────────


async def events_of(view: View, record: JobRecord) -> list[LogEntry]:
    """What happened to a job, oldest first: from the log around the times in its record, and from
    the record where the log no longer has the event."""
    found: dict[str, EventRecord] = {}
    end = (await view.store.read_events(record.queue, after=None)).position
    if "," not in end:
        times = _Times(view.store, record.queue, end)
        for moment in _moments(record):
            if any(event.at_ms == moment for event in found.values()):
                continue
            start = await times.before(moment)
            page = await view.store.read_events(record.queue, after=start, limit=_AROUND)
            found.update({event.id: event for event in page.events if event.job == record.id})
    entries = [log_entry(view, event) for event in found.values()]
    logged = [(entry.kind, entry.at_ms) for entry in entries]
    entries += [
        each
        for each in _recorded(view, record)
        if not any(k == each.kind and abs(at - each.at_ms) <= _SAME_MS for k, at in logged)
    ]
    return sorted(entries, key=lambda entry: entry.at_ms)


def _moments(record: JobRecord) -> Sequence[int]:
    times = [
        record.created_ms,
        *(error.at_ms for error in record.errors[3 - _MOMENTS :]),
        record.started_ms,
        record.finished_ms,
    ]
    return sorted({time for time in times if time})[:_MOMENTS]


class _Times:
    """Finds offsets in a log by time. Times in a log do not decrease.

    Between two known offsets it first looks where the time should be if events came evenly, then in
    the middle, so it needs few reads for most logs and about 40 for any.
    """

    def __init__(self, store: Store, queue: QueueName, end: str) -> None:
        self._store, self._queue = store, queue
        self._end = order(end)
        self._first_after: dict[int, float] = {}
        """The time of the first event after an offset, by offset."""

    async def before(self, at_ms: int) -> str:
        """The position right before the first event at this time or later."""
        if len(self._end) > 1:  # positions of this store are times
            return f"{at_ms - 1}-0"
        low, high = -1, self._end[0]
        for offset, first in self._first_after.items():
            if first < at_ms:
                low = max(low, offset)
            else:
                high = min(high, offset)
        even = True
        while high - low > 1:
            offset = self._guess(low, high, at_ms) if even else (low + high) // 2
            even = not even
            self._first_after[offset] = first = await self._read_first(offset)
            if first < at_ms:
                low = offset
            else:
                high = offset
        return str(high)

    def _guess(self, low: int, high: int, at_ms: int) -> int:
        early, late = self._first_after.get(low, -inf), self._first_after.get(high, inf)
        if early == -inf or late == inf:
            # The ends are not known yet: look at the one that is missing.
            return low + 1 if early == -inf else high - 1
        share = (at_ms - early) / (late - early)
        return max(low + 1, min(high - 1, low + round(share * (high - low))))

    async def _read_first(self, offset: int) -> float:
        page = await self._store.read_events(self._queue, after=str(offset), limit=1)
        if not page.events:
            return inf
        first = page.events[0]
        return -inf if first.kind == "gap" else first.at_ms


def _recorded(view: View, record: JobRecord) -> Iterator[LogEntry]:
    """What the record itself tells."""

    def entry(kind: str, at_ms: int, *, attempt: int = 0, error: str | None = None) -> LogEntry:
        return LogEntry(
            id="",
            kind=kind,
            at_ms=at_ms,
            job=record.id,
            name=record.name,
            key=record.key,
            attempt=attempt,
            state=None,
            worker=record.worker if kind == "started" else None,
            actor=None,
            reason=record.reason if kind == "cancelled" else None,
            error=error_text(view, error),
        )

    if record.life == 0:
        yield entry("accepted", record.created_ms)
    for failure in record.errors:
        if failure.at_ms != record.finished_ms:
            text = f"{failure.type}: {failure.message}"
            yield entry("retried", failure.at_ms, attempt=failure.attempt, error=text)
    if record.started_ms is not None:
        yield entry("started", record.started_ms, attempt=record.attempt)
    if record.finished_ms is not None and record.state.ended:
        failure_text = (
            f"{record.failure.type}: {record.failure.message}" if record.failure else None
        )
        yield entry(
            record.state.value, record.finished_ms, attempt=record.attempt, error=failure_text
        )
