"""Reads jobs, counters, metrics and the event log."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec

from jobq.core.records import event_log, refusals
from jobq.core.records.event_log import STATE_CODES, STATES
from jobq.core.records.events import EventPage, EventRecord
from jobq.core.records.jobs import Filter, JobKey, JobRecord, Page, QueueName
from jobq.core.records.queues import MinuteRecord, QueueRecord, StatsRecord
from jobq.core.records.states import State
from jobq.stores.relational import flows, history, holds, presence
from jobq.stores.relational.records import queue_record, record
from jobq.stores.relational.rows import (
    ACTIVE,
    BLOCKED,
    CANCELLED,
    COMPLETED,
    DELAYED,
    ENDED,
    ERRED,
    FAILED,
    FIGURES,
    NOTED,
    STEPPED,
    WAITING,
    WANTED,
    Job,
)
from jobq.stores.relational.tx import Tx

DAY = 24 * 60
"""Minutes of a day: the longest time that metrics cover."""
_MAX_READ = 1000
"""Rows that one `find` reads at the most, when its filter matches few of them."""
_SKIP = 10_000
"""Rows of an index that one `skip` passes at the most: a few milliseconds."""


def get(tx: Tx, jobs: Sequence[JobKey]) -> list[JobRecord | None]:
    """Implements `Store.get`."""
    return [_get(tx, key) for key in jobs]


def _get(tx: Tx, key: JobKey) -> JobRecord | None:
    queue = tx.queue(key.queue)
    job = None if queue is None else tx.find(queue.qid, key.id)
    if job is None or not _there(job, tx.now):
        return None
    found = _with_family(tx, job, key.queue)
    if not job.flags & (ERRED | STEPPED):
        return found
    return msgspec.structs.replace(
        found, errors=history.failed_runs_of(tx, job), steps=history.steps_of(tx, job)
    )


def _with_family(tx: Tx, job: Job, queue: QueueName) -> JobRecord:
    found = record(job, queue)
    if not job.flags & (WANTED | NOTED):
        return found
    parents, children = flows.family(tx, job)
    return msgspec.structs.replace(found, parents=parents, children=children)


def _there(job: Job, now: int) -> bool:
    return job.state not in ENDED or (job.at_ms or 0) > now


class _Section(NamedTuple):
    """A part of an index that has the jobs of one state: the statement that reads it, and its
    start.
    """

    statement: str
    order: Callable[[Job], tuple[Any, ...]]
    start: tuple[Any, ...]
    more: tuple[int, ...] = ()  # parameters that say which part of the index it is
    directions: tuple[int, ...] = (-1, -1)  # 1 if the values of `order` go up, -1 if they go down
    skip: str = ""  # the statement that finds a job further on; "": there is none

    def is_after(self, values: tuple[Any, ...], start: tuple[Any, ...]) -> bool:
        """Whether the listing shows a job with these values of its index after a place."""
        for value, there, direction in zip(values, start, self.directions, strict=True):
            if value != there:
                return bool((value > there) == (direction > 0))
        return False


_FIRST, _LAST = (-1, -1), (2**62, 2**62)
_FIRST_KEY = ("", 2**31 - 1, -1)
_LAST_KEY = (chr(0x10FFFF) * 2, -1, 2**62)
"""Behind every job of a keyed queue: keys are ordered by their bytes in UTF-8."""
_ORDER = (ACTIVE, WAITING, DELAYED, BLOCKED, FAILED, COMPLETED, CANCELLED)


def _sections(state: int, oldest_first: bool) -> list[_Section]:
    if state == WAITING:
        plain, keyed = attrgetter("priority", "seq"), attrgetter("key", "priority", "seq")
        if oldest_first:
            return [
                _Section("page_waiting_oldest", plain, (2**31 - 1, -1)),
                _Section("page_waiting_keyed_oldest", keyed, _FIRST_KEY),
            ]
        return [
            _Section("page_waiting", plain, (-1, 2**62), directions=(1, -1), skip="skip_waiting"),
            _Section(
                "page_waiting_keyed",
                keyed,
                _LAST_KEY,
                directions=(-1, 1, -1),
                skip="skip_waiting_keyed",
            ),
        ]
    statement, start = ("page_timed_oldest", _FIRST) if oldest_first else ("page_timed", _LAST)
    return [
        _Section(statement, attrgetter("at_ms", "pk"), start, (state, keep), skip="skip_timed")
        for keep in ((0, 1) if state in ENDED else (0,))
    ]


def find(tx: Tx, filter: Filter, cursor: str | None, limit: int, until: str | None = None) -> Page:
    """Implements `Store.find`. The cursor is [section, *values]: continue in that section after the
    job with these values of its index.
    """
    queue = tx.queue(filter.queue)
    if queue is None:
        return Page(records=())
    sections = _listing(filter)
    first, after = (0, sections[0].start) if cursor is None else _parsed(cursor, sections)
    end, last = (len(sections) - 1, None) if until is None else _parsed(until, sections)
    found: list[JobRecord] = []
    read = 0
    for n, section in enumerate(sections[first : end + 1], first):
        if n > first:
            after = section.start
        most = _MAX_READ - read
        if filter.name is None and filter.key is None:
            most = min(most, max(1, limit - len(found)))
        parameters = (queue.qid, most, *after, *section.more)
        for nth, row in enumerate(tx.execute(tx.sql.reads[section.statement], parameters), 1):
            job = tx.read_job(row)
            if last is not None and n == end and section.is_after(section.order(job), last):
                return Page(records=tuple(found))
            read += 1
            if _matches(job, filter, tx.now):
                found.append(_with_family(tx, job, filter.queue))
            if len(found) >= limit or nth == most:
                return Page(records=tuple(found), cursor=json.dumps([n, *section.order(job)]))
    return Page(records=tuple(found))


def skip(tx: Tx, filter: Filter, cursor: str | None, count: int) -> str | None:
    """Implements `Store.skip`.

    What is left of a section that has fewer jobs is skipped as well."""
    if filter.oldest_first:
        raise refusals.not_divided()
    queue = tx.queue(filter.queue)
    if queue is None:
        return None
    sections = _listing(filter)
    first, after = (0, sections[0].start) if cursor is None else _parsed(cursor, sections)
    for n, section in enumerate(sections[first:], first):
        start = after if n == first else section.start
        statement = tx.sql.reads[section.skip]
        row = tx.execute(
            statement, (queue.qid, min(max(count, 1), _SKIP) - 1, *start, *section.more)
        ).fetchone()
        if row is not None:
            return json.dumps([n, *section.order(tx.read_job(row))])
    return None


def _listing(filter: Filter) -> list[_Section]:
    """The sections of a listing, in its order."""
    states = _ORDER if filter.state is None else (STATE_CODES[filter.state],)
    return [section for state in states for section in _sections(state, filter.oldest_first)]


def _parsed(cursor: str, sections: Sequence[_Section]) -> tuple[int, tuple[Any, ...]]:
    try:
        n, *after = json.loads(cursor)
        if not 0 <= n < len(sections) or len(after) != len(sections[n].start):
            raise ValueError(cursor)
    except (ValueError, TypeError):
        raise refusals.no_cursor(cursor) from None
    return n, tuple(after)


def _matches(job: Job, filter: Filter, now: int) -> bool:
    return (
        (filter.name is None or job.name == filter.name)
        and (filter.key is None or job.key == filter.key)
        and _there(job, now)
    )


def count(tx: Tx, name: QueueName) -> dict[State, int]:
    """Implements `Store.count`."""
    queue = tx.queue(name)
    return {
        state: 0 if queue is None else tx.count(queue, code) for code, state in enumerate(STATES)
    }


def stats(tx: Tx, name: QueueName) -> StatsRecord:
    """Implements `Store.stats`."""
    queue = tx.queue(name)
    if queue is None:
        return StatsRecord(queue=name, counts=count(tx, name), workers=presence.number_of(tx, name))
    oldest = (
        tx.execute(tx.sql.reads["head"], (queue.qid,)).fetchone()
        or tx.execute(tx.sql.reads["keyed_head"], (queue.qid,)).fetchone()
    )
    due = tx.execute(tx.sql.hot["next_due"], (queue.qid,)).fetchone()
    return StatsRecord(
        queue=name,
        counts=count(tx, name),
        paused=bool(queue.paused),
        mode=queue.mode,
        oldest_waiting_ms=None if oldest is None else max(0, tx.now - oldest[0]),
        next_due_ms=None if due is None else max(0, due[0] - tx.now),
        workers=presence.number_of(tx, name),
        held_until_ms=holds.until(tx, queue),
    )


def metrics(tx: Tx, name: QueueName, minutes: int) -> list[MinuteRecord]:
    """Implements `Store.metrics`."""
    queue = tx.queue(name)
    if queue is None:
        return []
    first = (tx.now // 60_000 - min(minutes, DAY) + 1) * 60_000
    return [
        MinuteRecord(minute_ms=minute, **dict(zip(FIGURES, figures, strict=True)))
        for minute, figures in tx.minutes(queue, first)
    ]


def logs(tx: Tx, key: JobKey) -> list[str]:
    """Implements `Store.logs`."""
    queue = tx.queue(key.queue)
    job = None if queue is None else tx.find(queue.qid, key.id)
    return (
        []
        if job is None or not _there(job, tx.now)
        else [text for (text,) in tx.execute(tx.sql.ties["lines_of"], (job.pk,))]
    )


def queues(tx: Tx, tenant: str | None) -> list[QueueRecord]:
    """Implements `Store.queues`."""
    rows = (
        tx.execute(tx.sql.reads["queues"])
        if tenant is None
        else tx.execute(tx.sql.reads["queues_of"], (tenant,))
    ).fetchall()
    return [queue_record(tx, tx.queue_row(row)) for row in rows]


# ── events ────────────────────────────────────────────────────────────────────────────────────────


def read_events(
    tx: Tx, log_id: str, name: QueueName, after: str | None, limit: int, until: str | None
) -> EventPage:
    """Implements `Store.read_events`. A position is the number of the last entry that was read."""
    queue = tx.queue(name)
    if queue is None:
        return EventPage(events=(), position=after or "0")
    if after is None:
        return EventPage(events=(), position=str(tx.last_position(queue)))
    _entry(after)
    last = None if until is None else _entry(until)
    found: list[EventRecord] = []
    position = after
    log = f"{log_id}.{queue.qid}"
    for pos, entry in tx.entries(queue, int(after), limit):
        events = event_log.unpack(log, str(pos), name, entry)
        if not found and pos > int(after) + 1:  # positions have no gaps: the others were dropped
            what = f"{pos - int(after) - 1:,} entries dropped"
            trimmed = tx.execute(tx.sql.reads["trimmed"], (queue.qid,)).fetchone()
            found.append(
                event_log.gap(
                    log,
                    str(pos - 1),
                    name,
                    events[0].at_ms,
                    what,
                    shard=0,
                    number=max(0, events[0].number - 1),
                    incarnation="" if trimmed is None else trimmed[0],
                )
            )
            position = str(pos - 1)
        if last is not None and pos > last:
            break
        found += events
        position = str(pos)
        if len(found) >= limit:
            break
    return EventPage(events=tuple(found), position=position)


def _entry(position: str) -> int:
    """The number of the log's entry at a position. InvalidJob if it is not a position."""
    (offset,) = event_log.offsets(position, 1)
    if not offset.isdigit():
        raise refusals.no_position(position)
    return int(offset)


def ack_events(tx: Tx, name: QueueName, reader: str, position: str | None) -> str | None:
    """Implements `Store.ack_events`."""
    qid = tx.ensure_queue(name).qid
    if position is not None:
        tx.execute(tx.sql.reads["ack"], (qid, reader, _entry(position)))
    row = tx.execute(tx.sql.reads["reader"], (qid, reader)).fetchone()
    return None if row is None else str(row[0])


def readers(tx: Tx, name: QueueName) -> dict[str, str]:
    """Implements `Store.readers`."""
    queue = tx.queue(name)
    return (
        {}
        if queue is None
        else {reader: str(pos) for reader, pos in tx.execute(tx.sql.reads["readers"], (queue.qid,))}
    )


def remove_reader(tx: Tx, name: QueueName, reader: str) -> bool:
    """Implements `Store.remove_reader`."""
    queue = tx.queue(name)
    return queue is not None and tx.change(tx.sql.reads["remove_reader"], (queue.qid, reader)) > 0
