"""What a handle remembers between transactions, and which queues are plain."""

from __future__ import annotations

from typing import NamedTuple

from jobq.core.records.jobs import QueueName
from jobq.core.records.queues import NO_DEFAULTS, Limits
from jobq.core.records.states import State
from jobq.core.rules.ended import by_state
from jobq.errors import CorruptStore
from jobq.stores.postgres.clock import StoreClock
from jobq.stores.postgres.floors import Floors
from jobq.stores.postgres.snapshots import Held
from jobq.stores.relational.rows import QueueRow, Row
from jobq.stores.relational.tx import Memory


def is_plain(queue: QueueRow, now: int) -> bool:
    """Whether single statements may put, complete and claim jobs of the queue (fast.py)."""
    if queue.mode != "plain" or queue.paused or not queue.listed or queue.held_ms > now:
        return False
    try:
        stored = queue.settings
    except CorruptStore:
        return False
    return (
        stored.effective == Limits()
        and not stored.frail
        and not stored.event_meta
        and stored.defaults == NO_DEFAULTS
    )


def saved(queue: QueueRow, now: int) -> Row:
    """The parameters of `save_queue`."""
    try:
        kept_ms = by_state(queue.settings.retention, State.COMPLETED)
    except CorruptStore:
        kept_ms = 0  # not read: the queue is not plain
    return (
        queue.mode,
        queue.paused,
        queue.listed,
        queue.held_ms,
        queue.rate,
        queue.packed_settings,
        queue.reserved,
        is_plain(queue, now),
        kept_ms,
        queue.qid,
    )


class Plain(NamedTuple):
    """A queue whose jobs single statements may put, complete and claim (fast.py)."""

    qid: int
    name: QueueName


class Registered(NamedTuple):
    """A worker whose registration as a sleeper stays."""

    qids: frozenset[int]
    at: float  # monotonic clock


class PostgresMemory(Memory):
    """Caches of one handle. Others write to the database at any time, so no row is kept."""

    def __init__(self, incarnation: str = "") -> None:
        super().__init__(incarnation)
        self.calls: dict[str, str] = {}  # by caller: its last exchange, if it came through here
        self.trimmed: dict[int, int] = {}  # by queue: events logged when its log was last trimmed
        self.keyed_turns = 0  # how often a tick has chosen some of the queues that only have keys
        self.next_segments = 0.0  # no look at the segments of the log before then (monotonic clock)
        self.free: dict[int, float] = {}  # by segment: since when nobody needs it (monotonic clock)
        self.plain: dict[QueueName, Plain] = {}
        self.calls_swept_ms = 0  # exchanges before this time are deleted
        self.held = Held()  # what the leader knows about snapshots
        self.floors = Floors()
        self.registered: dict[str, Registered] = {}  # by worker
        self.clock: StoreClock | None = None

    def time_of_reply(self, ms: int | None, sent: float) -> None:
        """A reply has the time. Its statement was sent at this time, by clock.elapsed."""
        if self.clock is not None and ms is not None:
            self.clock.time_of_reply(ms, sent)
