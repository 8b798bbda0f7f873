"""What a dialect implements of a request inside a transaction.

`Tx` (tx.py) adds what is the same for all dialects.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from jobq.core.records import event_log
from jobq.core.records.jobs import QueueName
from jobq.stores.relational.rows import Job, Lock, NewJob, QueueRow, Row, read, read_all
from jobq.stores.relational.statements import Statements

if TYPE_CHECKING:
    from jobq.stores.relational.upkeep import Sweep


class Rows(Protocol):
    """The rows that a statement returns."""

    def fetchone(self) -> Any:
        """The next row; None: there is none."""
        ...

    def fetchall(self) -> list[Any]:
        """All rows that are left."""
        ...

    def __iter__(self) -> Iterator[Any]: ...


class Execute(Protocol):
    """Executes a statement."""

    def __call__(self, sql: str, parameters: Any = (), /) -> Rows: ...


class ExecuteMany(Protocol):
    """Executes a statement for each of these parameters."""

    def __call__(self, sql: str, rows: Iterable[Any], /) -> object: ...


class Dialect(ABC):
    """The statements of a request, and the facts that dialects store differently.

    The methods that are not abstract suit SQLite, or a dialect that has nothing to do there."""

    sql: ClassVar[Statements]
    few: ClassVar[int]
    """Jobs. A claim of up to so many reads them first, and updates each with a statement."""
    sweeps: ClassVar[Sequence[Sweep]]
    """The tables from which a tick deletes rows that processes left behind."""
    follow_up: ClassVar[str] = "\0next"
    """Follows the name of a unique lock in the name under which its follow-up is stored. No lock
    has a control character in its name."""

    execute: Execute
    many: ExecuteMany

    # ── statements ────────────────────────────────────────────────────────────────────────────────

    @abstractmethod
    def change(self, sql: str, parameters: Any) -> int:
        """Execute a statement. Returns how many rows it changed."""

    @abstractmethod
    def change_many(self, sql: str, rows: Sequence[Any]) -> int:
        """Execute a statement for each of these parameters. Returns how many rows it changed."""

    def first_rows(self, sql: str, rows: Sequence[Any]) -> list[Any]:
        """Execute a statement for each of these parameters. Returns the first row of each.

        One after the other: an open cursor would keep SQLite from committing."""
        return [self.execute(sql, row).fetchone() for row in rows]

    @abstractmethod
    def listed(self, values: Sequence[Any]) -> Any:
        """A list as one parameter of a statement."""

    # ── queues ────────────────────────────────────────────────────────────────────────────────────

    @abstractmethod
    def queue(self, name: QueueName) -> QueueRow | None:
        """The row of a queue, or None. The same object for the whole transaction."""

    @abstractmethod
    def ensure_queue(self, name: QueueName) -> QueueRow:
        """The row of a queue, which is created if it does not exist."""

    @abstractmethod
    def queue_by_qid(self, qid: int) -> QueueRow:
        """The row of a queue by its number."""

    def check_unused(self, name: QueueName) -> None:
        """LockTimeout if an open transaction of a caller uses the queue, which is to be removed."""

    def queue_row(self, row: Row) -> QueueRow:
        """A queue's row from the columns of {queue}. It is only read, and not kept."""
        return QueueRow.of(row)

    def lock_queues(self, names: Iterable[QueueName]) -> None:
        """Lock several queues before the request uses them. SQLite has one writer at a time."""
        return

    @abstractmethod
    def take_seqs(self, qid: int, n: int = 1) -> int:
        """Take n new places at the back of the queue. Returns the first of them."""

    def front(self, job: Job) -> int:
        """The place at which a job returns to the front of its priority: the one it had."""
        return job.seq

    @abstractmethod
    def count(self, queue: QueueRow, state: int) -> int:
        """How many jobs of a queue are in a state, with the changes of this transaction."""

    @abstractmethod
    def recount_waiting(self, queue: QueueRow, claimed: int) -> None:
        """A claim found fewer jobs than it wanted: correct the counter of waiting jobs if it says
        that more are left than these."""

    @abstractmethod
    def minutes(self, queue: QueueRow, first_ms: int) -> list[tuple[int, Sequence[int]]]:
        """The metrics of a queue since a minute: the minute and its figures (rows.FIGURES)."""

    # ── jobs ──────────────────────────────────────────────────────────────────────────────────────

    @abstractmethod
    def insert_jobs(self, rows: Sequence[NewJob]) -> int:
        """Insert new jobs, except those whose ids exist. Returns how many were inserted."""

    def insert_job(self, row: NewJob) -> Job | None:
        """Insert one job and return its row. None: its id exists."""
        return self.find(row.qid, row.id) if self.insert_jobs([row]) else None

    @abstractmethod
    def complete_jobs(self, rows: Sequence[Row]) -> bool:
        """Complete jobs by the statement `complete`: one for each of these parameters, or none.

        Returns whether they were completed."""

    def load(self, pks: Iterable[int]) -> list[Job]:
        """The rows of jobs by number, in the order of the queue."""
        rows = self.execute(self.sql.hot["load_jobs"], (self.listed(list(pks)),)).fetchall()
        return read_all(rows, Job)

    def read_job(self, row: Row) -> Job:
        """A row of a job. A dialect that repairs damaged rows raises msgspec.ValidationError."""
        return read(row, Job)

    def find(self, qid: int, id: str) -> Job | None:
        """The row of a job by id."""
        row = self.execute(self.sql.hot["find_job"], (qid, id)).fetchone()
        return None if row is None else read(row, Job)

    def job(self, pk: int) -> Job | None:
        """The row of a job by number."""
        row = self.execute(self.sql.hot["load_job"], (pk,)).fetchone()
        return None if row is None else read(row, Job)

    def save(self, job: Job) -> None:
        """Write the row of a job."""
        self.execute(self.sql.hot["save_job"], job.values())

    def lock_row(self, qid: int, lock: str) -> Lock | None:
        """Who holds a unique lock."""
        row = self.execute(self.sql.ties["lock"], (qid, lock)).fetchone()
        return None if row is None else Lock(*row)

    def give_lock(self, qid: int, lock: str, to: Lock) -> None:
        """Give a unique lock to a job, also if the job that `lock_row` has found holds it."""
        self.execute(self.sql.ties["take_lock"], (qid, lock, *to))

    def lock_as_read(self, job: Job) -> None:
        """Lock a job before it is changed. If it has changed since it was read, start over.

        Most requests have locked it when they read it."""

    def may_change(self, job: Job) -> bool:
        """Whether the request may change a job that it has read.

        False in a caller's transaction, unless the request has put the job: the row would stay
        locked, and others change it meanwhile. What depends on it is decided after the commit."""
        return True

    # ── what happened ─────────────────────────────────────────────────────────────────────────────

    @abstractmethod
    def log_change(
        self,
        qid: int,
        kind: int,
        previous: int | None,
        state: int,
        items: Sequence[event_log.Item],
        worker: str | None,
        run_ms: int,
        wait_ms: int,
    ) -> None:
        """Append the events of a change to the queue's log, and add it to counters and metrics."""

    @abstractmethod
    def log_operation(self, queue: QueueRow, item: event_log.Item) -> None:
        """Append the event of an operation on a queue to its log."""

    @property
    @abstractmethod
    def logged(self) -> Iterable[int]:
        """The queues whose log has grown."""

    @abstractmethod
    def last_number(self, qid: int) -> int:
        """The number of the last event of the queue, recorded by this transaction or before."""

    @abstractmethod
    def last_position(self, queue: QueueRow) -> int:
        """The position of the last entry of the queue's log that readers can read."""

    def entries(self, queue: QueueRow, after: int, limit: int) -> Iterable[tuple[int, bytes]]:
        """The entries of the queue's log after a position, oldest first, with their positions.

        An entry is packed by core.records.event_log. The caller reads at most `limit` of them."""
        return self.execute(self.sql.reads["entries"], (queue.qid, after))

    @abstractmethod
    def trim_log(self, queue: QueueRow, limit: int) -> int:
        """Drop old entries of the queue's log, at most `limit`. Returns how many."""

    @abstractmethod
    def removed(self, qid: int, state: int, n: int = 1) -> None:
        """Records of ended jobs were deleted. That is not an event."""

    # ── exchanges ─────────────────────────────────────────────────────────────────────────────────

    @abstractmethod
    def repeated(self, caller: str, call: str) -> tuple[bytes | None] | None:
        """What `remember_call` has stored, if this was the caller's last call; None: it was not."""

    @abstractmethod
    def remember_call(self, caller: str, call: str, stale: bytes | None) -> None:
        """Remember an exchange and its stale leases, in case its reply is lost."""

    # ── sleepers and listeners ────────────────────────────────────────────────────────────────────

    @abstractmethod
    def reachable(self, address: Sequence[Any]) -> bool:
        """Whether the process of a mailbox may still exist."""

    def has_sleepers(self, queue: QueueRow) -> bool:
        """Whether a worker may be asleep that found nothing in the queue."""
        return bool(queue.asleep)

    def set_sleepers(self, queue: QueueRow, there: bool) -> None:
        """A worker fell asleep, or all sleepers were woken."""
        if queue.asleep != there:
            queue.asleep, queue.dirty = int(there), True

    def has_listeners(self, queue: QueueRow) -> bool:
        """Whether anybody may listen to the queue's log."""
        return bool(queue.heard)

    def set_listeners(self, queue: QueueRow, there: bool) -> None:
        """Somebody listens to the queue's log, or nobody does any more."""
        if queue.heard != there:
            queue.heard, queue.dirty = int(there), True

    # ── upkeep ────────────────────────────────────────────────────────────────────────────────────

    def nothing_is_due(self, queue: QueueRow) -> bool:
        """Whether nothing of a queue is due, because a call has looked in this millisecond."""
        return False

    def found_nothing(self, queue: QueueRow) -> None:
        """A call has looked, and nothing of the queue is due."""
        return

    def patrol(self, queues: Sequence[QueueRow], limit: int) -> None:
        """Look for rows that jobq never writes, and repair them. Runs at the end of a tick."""
        return

    @abstractmethod
    def flush(self) -> None:
        """Write what is still to be written: the event log, the counters, the rows of queues."""
