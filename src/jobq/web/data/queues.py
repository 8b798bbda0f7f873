"""Queues: counts, rates, waiting and running times, limits and holds."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from jobq.core.records.events import EventRecord
from jobq.core.records.jobs import QueueName
from jobq.core.records.queues import (
    Limits,
    LimitsRecord,
    MinuteRecord,
    QueueRecord,
    RateData,
    Window,
)
from jobq.core.records.states import Kind, State
from jobq.core.rules.limits import COUNTED_STATES
from jobq.operations import listing
from jobq.web.data.log import LogEntry, log_entry, tail
from jobq.web.data.view import Shape, View

MAX_ROWS = 50
"""Queues of one page. Each costs a handful of store calls."""
MAX_MINUTES = 1_440
"""A store keeps the minutes of one day."""
_RATE_MINUTES = 5
_SPARK = 60
_MINUTE_MS = 60_000
_SAMPLE = 200
"""Events at the end of the log that percentiles are made of."""
_ENDS = frozenset({Kind.COMPLETED, Kind.FAILED, Kind.RETRIED})


class Spread(Shape, frozen=True, kw_only=True):
    """Percentiles of a duration, over `of` runs that ended recently."""

    p50_ms: int
    p95_ms: int
    p99_ms: int
    of: int


class Rates(Shape, frozen=True, kw_only=True):
    """Jobs per minute, averaged over the last five minutes."""

    accepted: float
    started: float
    completed: float
    failed: float
    retried: float


class Minute(Shape, frozen=True, kw_only=True):
    """What happened in one minute of one queue. `wait_ms` and `run_ms` are means, not sums."""

    minute_ms: int
    accepted: int
    started: int
    completed: int
    failed: int
    cancelled: int
    retried: int
    stalled: int
    wait_ms: int
    run_ms: int


class QueueRow(Shape, frozen=True, kw_only=True):
    """A queue as a row of the overview."""

    tenant: str
    queue: str
    mode: str | None
    """plain or keyed. None: no job yet."""
    paused: bool
    held_until_ms: int | None
    counts: dict[str, int]
    """By state, all seven states."""
    depth: int
    """Jobs that have not started: waiting, delayed and blocked."""
    oldest_waiting_ms: int | None
    next_due_ms: int | None
    workers: int
    rates: Rates
    wait: Spread | None
    """From due to started. None: no run ended recently."""
    run: Spread | None
    """From started to ended."""
    completed_per_minute: tuple[int, ...]
    """The last 60 minutes, oldest first, with zeros: a sparkline."""
    failed_per_minute: tuple[int, ...]


class HeldKey(Shape, frozen=True, kw_only=True):
    """A key that is held, and until when."""

    key: str
    until_ms: int


class LimitsShown(Shape, frozen=True, kw_only=True):
    """The limits in force. None: no such limit."""

    limit: int | None
    rate: str | None
    """`100/60s` is 100 starts per minute, `10+0.5/s` a bucket of 10 tokens, refilled with 0.5/s."""
    key_limit: int | None
    key_rate: str | None
    max_waiting: int | None
    changed: bool
    """Whether an operator has changed them at run time."""
    version: int
    keys: dict[str, str]
    """Overrides of single keys, in words."""


class QueueShown(Shape, frozen=True, kw_only=True):
    """The page of a queue."""

    row: QueueRow
    now_ms: int
    partitions: int
    limits: LimitsShown
    held_keys: tuple[HeldKey, ...]
    """Those that end first."""
    retention: dict[str, int | None]
    """completed_ms, failed_ms, cancelled_ms and count. None: forever, or any number."""
    dead_letters: str | None
    """The queue that gets copies of failed jobs."""
    max_retries: int | None
    ttl_ms: int | None
    minutes: tuple[Minute, ...]
    """The last 60 minutes, oldest first, also those without jobs."""
    recent: tuple[LogEntry, ...]
    """The newest events of the log, newest first."""
    readers: dict[str, str]
    """Readers of the event log and their positions."""


class QueueLive(Shape, frozen=True, kw_only=True):
    """What a live stream sends about a queue whenever it changes."""

    tenant: str
    queue: str
    counts: dict[str, int]
    paused: bool
    held_until_ms: int | None
    workers: int


class QueueList(Shape, frozen=True, kw_only=True):
    """Queues, by tenant and name. `after` continues the list; None means there is no more."""

    queues: tuple[QueueRow, ...]
    after: str | None
    total: int


# ── reading ───────────────────────────────────────────────────────────────────────────────────────


async def queues(
    view: View, *, tenant: str | None = None, after: str | None = None, limit: int = MAX_ROWS
) -> QueueList:
    """Queues by name. Each row costs a few store calls, at any backlog."""
    records = await listing.queues(view.store, tenant)
    last = None if after is None else tuple(after.split(":", 1))
    rest = [each for each in records if last is None or tuple(each.queue) > last]
    page = rest[: max(1, min(limit, MAX_ROWS))]
    rows = await asyncio.gather(*(queue_row(view, record) for record in page))
    return QueueList(
        queues=tuple(rows),
        after=_name(page[-1].queue) if len(page) < len(rest) else None,
        total=len(records),
    )


def _name(queue: QueueName) -> str:
    return f"{queue.tenant}:{queue.queue}"  # a tenant contains no colon


async def queue_row(view: View, record: QueueRecord) -> QueueRow:
    """One queue as a row."""
    minutes = await view.store.metrics(record.queue, minutes=_SPARK)
    return await _row(view, record, minutes)


async def _row(view: View, record: QueueRecord, minutes: Sequence[MinuteRecord]) -> QueueRow:
    stats = await view.store.stats(record.queue)
    ends = [
        event
        for event in await tail(view.store, record.queue, want=_SAMPLE)
        if event.kind in _ENDS and event.started_ms is not None
    ]
    filled = _filled(minutes, view.now_ms(), _SPARK)
    return QueueRow(
        tenant=record.queue.tenant,
        queue=record.queue.queue,
        mode=record.mode,
        paused=stats.paused,
        held_until_ms=stats.held_until_ms,
        counts=all_counts(stats.counts),
        depth=sum(stats.counts.get(state, 0) for state in COUNTED_STATES),
        oldest_waiting_ms=stats.oldest_waiting_ms,
        next_due_ms=stats.next_due_ms,
        workers=stats.workers,
        rates=rates(minutes, view.now_ms()),
        wait=spread(_waits(ends)),
        run=spread([event.at_ms - (event.started_ms or 0) for event in ends]),
        completed_per_minute=tuple(each.completed for each in filled),
        failed_per_minute=tuple(each.failed for each in filled),
    )


def _waits(ends: Iterable[EventRecord]) -> list[int]:
    return [
        event.started_ms - (event.due_ms if event.due_ms is not None else event.created_ms)
        for event in ends
        if event.started_ms is not None
    ]


def all_counts(counts: dict[State, int]) -> dict[str, int]:
    """The counts of all states by their names, with 0 for those without jobs."""
    return {state.value: counts.get(state, 0) for state in State}


def rates(minutes: Iterable[MinuteRecord], now_ms: int) -> Rates:
    """Jobs per minute over the last five minutes."""
    last = [each for each in minutes if each.minute_ms > now_ms - _RATE_MINUTES * _MINUTE_MS]

    def mean(name: str) -> float:
        return float(sum(getattr(each, name) for each in last)) / _RATE_MINUTES

    return Rates(
        accepted=mean("accepted"),
        started=mean("started"),
        completed=mean("completed"),
        failed=mean("failed"),
        retried=mean("retried"),
    )


def spread(values: Sequence[int]) -> Spread | None:
    """Percentiles of some durations. None if there are none."""
    if not values:
        return None
    ordered = sorted(max(0, value) for value in values)

    def at(percent: int) -> int:
        return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]

    return Spread(p50_ms=at(50), p95_ms=at(95), p99_ms=at(99), of=len(ordered))


def _filled(minutes: Iterable[MinuteRecord], now_ms: int, number: int) -> tuple[MinuteRecord, ...]:
    """The last minutes, oldest first, with the empty ones."""
    known = {each.minute_ms: each for each in minutes}
    last = now_ms - now_ms % _MINUTE_MS
    times = range(last - (number - 1) * _MINUTE_MS, last + 1, _MINUTE_MS)
    return tuple(known.get(time) or MinuteRecord(minute_ms=time) for time in times)


async def minutes(view: View, tenant: str, queue: str, *, minutes: int = 60) -> tuple[Minute, ...]:
    """What happened per minute, oldest first, with the empty minutes. A day at most."""
    number = max(1, min(minutes, MAX_MINUTES))
    found = await view.store.metrics(QueueName(tenant, queue), minutes=number)
    return _minutes(found, view.now_ms(), number)


def _minutes(found: Iterable[MinuteRecord], now_ms: int, number: int) -> tuple[Minute, ...]:
    return tuple(
        Minute(
            minute_ms=each.minute_ms,
            accepted=each.accepted,
            started=each.started,
            completed=each.completed,
            failed=each.failed,
            cancelled=each.cancelled,
            retried=each.retried,
            stalled=each.stalled,
            wait_ms=each.wait_ms // max(1, each.started),
            run_ms=each.run_ms // max(1, each.completed + each.failed + each.retried),
        )
        for each in _filled(found, now_ms, number)
    )


async def recent(view: View, tenant: str, queue: str, *, limit: int = 50) -> tuple[LogEntry, ...]:
    """The newest events of a queue's log, newest first, operations on the queue included."""
    found = await tail(view.store, QueueName(tenant, queue), want=max(1, min(limit, 500)))
    return tuple(log_entry(view, event) for event in reversed(found))


async def queue(view: View, tenant: str, queue: str, *, minutes: int = 60) -> QueueShown:
    """The page of one queue. JobNotFound if there is no such queue."""
    record = await listing.get_queue(view.store, QueueName(tenant, queue))
    number = max(1, min(minutes, MAX_MINUTES))
    found = await view.store.metrics(record.queue, minutes=max(number, _SPARK))
    held = await view.store.holds(record.queue)
    retention = record.retention
    return QueueShown(
        row=await _row(view, record, found),
        now_ms=view.now_ms(),
        partitions=record.partitions,
        limits=limits_shown(record.limits),
        held_keys=tuple(HeldKey(key=key, until_ms=until) for key, until in held.keys.items()),
        retention={
            "completed_ms": retention.completed_ms,
            "failed_ms": retention.failed_ms,
            "cancelled_ms": retention.cancelled_ms,
            "count": retention.count,
        },
        dead_letters=record.dead_letters,
        max_retries=record.defaults.max_retries,
        ttl_ms=record.defaults.ttl_ms,
        minutes=_minutes(found, view.now_ms(), number),
        recent=await recent(view, tenant, queue),
        readers=await view.store.readers(record.queue),
    )


# ── limits in words ───────────────────────────────────────────────────────────────────────────────


def limits_shown(record: LimitsRecord) -> LimitsShown:
    """The limits of a queue in words."""
    limits = record.effective
    return LimitsShown(
        limit=limits.limit,
        rate=rate_words(limits.rate),
        key_limit=limits.key_limit,
        key_rate=rate_words(limits.key_rate),
        max_waiting=limits.max_waiting,
        changed=record.changed is not None,
        version=record.version,
        keys={key: _key_words(own) for key, own in sorted(record.keys.items())[:100]},
    )


def rate_words(rate: RateData | None) -> str | None:
    """A rate as the action `queue.limits` takes it: `100/60s`, or `10+0.5/s` for a bucket."""
    if rate is None:
        return None
    if isinstance(rate, Window):
        return f"{rate.limit}/{rate.per_ms / 1000:g}s"
    return f"{rate.capacity}+{rate.refill:g}/s"


def _key_words(own: Limits) -> str:
    words = []
    if own.key_limit is not None:
        words.append(f"{own.key_limit} at once")
    if own.key_rate is not None:
        words.append(f"{rate_words(own.key_rate)}")
    return ", ".join(words)
