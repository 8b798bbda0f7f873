"""What a handle remembers between transactions."""

from __future__ import annotations

from typing import NamedTuple

from jobq.core.records import QueueName
from jobq.stores.postgres.clock import StoreClock
from jobq.stores.postgres.floors import Floors
from jobq.stores.postgres.held import Held
from jobq.stores.relational.memory import Memory


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
