"""Queues: counts, rates, waiting and running times, limits and holds."""

from __future__ import annotations

from jobq.core.queues import QueueRecord
from jobq.web.data.view import Shape, View


class Spread(Shape):
    """Percentiles of a duration, over `of` runs that ended recently."""

    p50_ms: int
    p95_ms: int
    p99_ms: int
    of: int


class Rates(Shape):
    """Jobs per minute, averaged over the last five minutes."""

    accepted: float
    started: float
    completed: float
    failed: float
    retried: float


class Minute(Shape):
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


class QueueRow(Shape):
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


class HeldKey(Shape):
    """A key that is held, and until when."""

    key: str
    until_ms: int


class LimitsShown(Shape):
    """The limits in force. None: no such limit."""

    limit: int | None
    rate: str | None
    """In words, e.g. `100 per 60 s` or `bucket of 20, 5 per s`."""
    key_limit: int | None
    key_rate: str | None
    max_waiting: int | None
    changed: bool
    """Whether an operator has changed them at run time."""
    version: int
    keys: dict[str, str]
    """Overrides of single keys, in words."""


class LogEntry(Shape):
    """One event of a queue's log."""

    id: str
    kind: str
    at_ms: int
    job: str
    """Empty for an operation on the queue."""
    name: str
    key: str | None
    attempt: int
    state: str | None
    worker: str | None
    actor: str | None
    """Who did it."""
    reason: str | None
    error: str | None
    """Type and message. Only the type if payloads are hidden."""


class QueueShown(Shape):
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


class QueueList(Shape):
    """Queues, by tenant and name. `after` continues the list; None means there is no more."""

    queues: tuple[QueueRow, ...]
    after: str | None
    total: int


async def queues(
    view: View, *, tenant: str | None = None, after: str | None = None, limit: int = 50
) -> QueueList:
    """Queues by name. Each row costs three store calls, at any backlog."""
    raise NotImplementedError


async def queue_row(view: View, record: QueueRecord) -> QueueRow:
    """One queue as a row."""
    raise NotImplementedError


async def queue(view: View, tenant: str, queue: str, *, minutes: int = 60) -> QueueShown:
    """The page of one queue. JobNotFound if there is no such queue."""
    raise NotImplementedError


async def minutes(view: View, tenant: str, queue: str, *, minutes: int = 60) -> tuple[Minute, ...]:
    """What happened per minute, oldest first, with the empty minutes. A day at most."""
    raise NotImplementedError


async def recent(view: View, tenant: str, queue: str, *, limit: int = 50) -> tuple[LogEntry, ...]:
    """The newest events of a queue's log, newest first, operations on the queue included."""
    raise NotImplementedError
