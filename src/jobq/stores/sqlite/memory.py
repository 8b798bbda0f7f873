"""What a process remembers of a SQLite file between transactions."""

from __future__ import annotations

from jobq.core.records import QueueName
from jobq.stores.relational.memory import Memory
from jobq.stores.relational.rows import QueueRow


class SqliteMemory(Memory):
    """Caches of one connection, also those that depend on being the only writer of the file."""

    def __init__(self, incarnation: str = "") -> None:
        super().__init__(incarnation)
        self.calls: dict[str, str] = {}  # by worker: its last exchange, if it came through here
        self.nothing_due_ms: dict[int, int] = {}  # by queue: a millisecond in which nothing was due
        self.trimmed: dict[int, int] = {}  # by queue: events logged when its log was last trimmed
        self.patrolled = 0  # the number of the last job that the patrol of a tick looked at
        # By name and by number. Valid as long as no other connection writes.
        self.queues: dict[QueueName | int, QueueRow] = {}

    def forget_queues(self) -> None:
        """Drop the rows of queues: somebody else may have changed them."""
        self.queues.clear()
