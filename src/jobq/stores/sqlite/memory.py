"""What a process remembers between transactions, so that it need not be read again."""

from __future__ import annotations

import msgspec

from jobq.core.records import QueueName
from jobq.stores.sqlite.rows import QueueRow


class Granted(msgspec.Struct, gc=False):
    """A lease that this process has granted: enough to complete the job without reading its row."""

    qid: int
    pk: int
    id: str
    life: int
    name: str
    key: str | None
    attempt: int
    failures: int
    stalls: int
    created_ms: int
    due_ms: int
    started_ms: int
    meta: dict[str, str] | None = None  # the part of its meta that its events carry


class Memory:
    """Caches of one connection. Any of them may be emptied: then the rows are read again."""

    def __init__(self, incarnation: str = "") -> None:
        self.incarnation = incarnation  # of the database: see Database
        self.granted: dict[str, Granted] = {}  # by token
        self.calls: dict[str, str] = {}  # by worker: its last exchange, if it came through here
        self.looked_ms: dict[int, int] = {}  # by queue: the millisecond in which nothing was due
        self.deputies: dict[int, float] = {}  # by queue: no deputies until then (monotonic clock)
        self.unreadable: set[int] = set()  # queues whose settings cannot be read, as was logged
        self.ticked_qid = 0  # the queue the last tick got to
        self.trimmed: dict[int, int] = {}  # by queue: events logged when its log was last trimmed
        self.swept: dict[str, tuple[int | str, ...]] = {}  # by sweep: the last key it looked at
        self.patrolled = 0  # the number of the last job that the patrol of a tick looked at
        # By name and by number. Valid as long as no other connection writes.
        self.queues: dict[QueueName | int, QueueRow] = {}

    def forget_queues(self) -> None:
        """Drop the rows of queues: somebody else may have changed them."""
        self.queues.clear()
