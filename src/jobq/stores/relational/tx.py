"""One request inside a transaction: reads and writes rows, and records what the request does.

Every change of a job's state goes through `move`, or `record_batch` on the hot paths. So the event
log, the counters, the metrics and the wake-ups always agree with the rows. `flush` writes them
before the transaction ends.

A dialect implements the abstract methods, and may replace the others.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import msgspec

from jobq.core import event_log
from jobq.core.records import Failure, QueueName
from jobq.core.states import Kind, QueueKind
from jobq.core.verdicts import error_text
from jobq.errors import CorruptStore
from jobq.stores.relational import settings
from jobq.stores.relational.codes import ACTIVE, DELAYED, WAITING
from jobq.stores.relational.mailbox import Notice
from jobq.stores.relational.memory import Memory
from jobq.stores.relational.options import event_meta, pack_failure
from jobq.stores.relational.rows import Job, NewJob, QueueRow, Row, read, read_all
from jobq.stores.relational.statements import Statements

if TYPE_CHECKING:
    from jobq.stores.relational.sweeps import Sweep

log = logging.getLogger("jobq")

_KINDS = event_log.KIND_CODES


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


class Tx(ABC):
    """The time of a request, and what it has done so far."""

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

    def __init__(self, now: int, memory: Memory, ahead: int = 0) -> None:
        self.now = now
        self.ahead = ahead  # ms that the store's time is ahead of a clock that was set back
        self.memory = memory
        self.notices: list[Notice] = []
        self.freed: dict[int, int] = {}  # by queue: how many fewer jobs are active
        self._keys: dict[int, dict[str, list[int]]] = {}
        self.woken: dict[int, int] = {}
        # Queues whose next job the claim has left, because the worker is not alone.
        self.last_chances: set[int] = set()
        self.soonest: dict[int, int] = {}
        self.ended: list[tuple[int, str]] = []  # watched jobs that ended
        self.wanted: list[Job] = []  # jobs that ended and that others wait for
        # Jobs that failed in a queue with dead letters, and the number of the event that says so.
        self.failed: list[tuple[QueueRow, Job, int]] = []

    # ── statements ────────────────────────────────────────────────────────────────────────────────

    @abstractmethod
    def change(self, sql: str, parameters: Any) -> int:
        """Execute a statement. Returns how many rows it changed."""

    @abstractmethod
    def change_many(self, sql: str, rows: Sequence[Any]) -> int:
        """Execute a statement for each of these parameters. Returns how many rows it changed."""

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

    @abstractmethod
    def all_queues(self) -> list[QueueRow]:
        """The rows of all queues, for a tick."""

    def queue_row(self, row: Row) -> QueueRow:
        """A queue's row from the columns of {queue}. It is only read, and not kept."""
        return QueueRow.of(row)

    @abstractmethod
    def take_places(self, qid: int, n: int = 1) -> int:
        """Take n new places at the back of the queue. Returns the first of them."""

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

    def readable(self, queue: QueueRow, *, needed: bool = False) -> bool:
        """Whether the settings of a queue can be read.

        If not, raises CorruptStore if they are `needed`, and otherwise logs the error once.
        """
        try:
            queue.settings  # noqa: B018 - decoded once per content, so that asking costs nothing
        except CorruptStore as error:
            if needed:
                raise
            if queue.qid not in self.memory.unreadable:
                self.memory.unreadable.add(queue.qid)
                log.error("%s; the other queues are served", error)
            return False
        return True

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

    # ── what happened ─────────────────────────────────────────────────────────────────────────────

    def move(
        self,
        job: Job,
        kind: Kind,
        state: int,
        *,
        reason: str | None = None,
        failure: Failure | None = None,
    ) -> None:
        """Change the state of a loaded job, save it and record the change."""
        previous, job.state = job.state, state
        if failure is not None:
            job.failure = pack_failure(failure)
        self.save(job)
        self.record(job, kind, previous, reason=reason, failure=failure)
        if state == DELAYED and job.due_ms is not None:
            self.due_at(job.qid, job.due_ms)

    def record(
        self,
        job: Job,
        kind: Kind,
        previous: int | None,
        *,
        reason: str | None = None,
        failure: Failure | None = None,
    ) -> None:
        """Record a change that is saved: as an event, in the counters, and for the keys."""
        error = fingerprint = None
        if failure is not None:
            error, fingerprint = error_text(failure), failure.fingerprint
            reason = reason or failure.reason
        item: event_log.Item = (
            _KINDS[kind],
            job.id,
            job.life,
            job.name,
            job.key,
            job.attempt,
            job.failures,
            job.stalls,
            job.state,
            previous,
            reason,
            error,
            fingerprint,
            job.created_ms,
            job.due_ms,
            job.started_ms,
            job.finished_ms,
        )
        if job.actor is not None:
            item = (*item, job.actor)
        if job.options is not None and (names := self.queue_by_qid(job.qid).settings.event_meta):
            item = event_log.with_meta(item, event_meta(job.options, names))
        run = self.now - job.started_ms if previous == ACTIVE and job.started_ms is not None else 0
        wait = self.now - (job.due_ms or job.created_ms) if job.state == ACTIVE else 0
        worker = job.worker if previous == ACTIVE or job.state == ACTIVE else None
        self.record_batch(
            job.qid,
            _KINDS[kind],
            previous,
            job.state,
            [item],
            worker=worker,
            run_ms=run,
            wait_ms=wait,
        )
        if job.stalls and previous != job.state and WAITING in (previous, job.state):
            self.count_stalled(job.qid, 1 if job.state == WAITING else -1)
        if job.key is not None and previous != job.state:
            self.key_moved(job.qid, job.key, previous, job.state)

    def record_batch(
        self,
        qid: int,
        kind: int,
        previous: int | None,
        state: int,
        items: Sequence[event_log.Item],
        *,
        worker: str | None = None,
        run_ms: int = 0,
        wait_ms: int = 0,
    ) -> None:
        """Record the same change of several jobs."""
        n = len(items)
        self.log_change(qid, kind, previous, state, items, worker, run_ms, wait_ms)
        if previous == ACTIVE:
            self.freed[qid] = self.freed.get(qid, 0) + n
        if state == ACTIVE:
            self.freed[qid] = self.freed.get(qid, 0) - n
        elif state == WAITING and previous != WAITING:
            self.woken[qid] = self.woken.get(qid, 0) + n

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

        An entry is packed by core.event_log. The caller reads at most `limit` of them."""
        return self.execute(self.sql.reads["entries"], (queue.qid, after))

    @abstractmethod
    def trim_log(self, queue: QueueRow, limit: int) -> int:
        """Drop old entries of the queue's log, at most `limit`. Returns how many."""

    @abstractmethod
    def removed(self, qid: int, state: int, n: int = 1) -> None:
        """Records of ended jobs were deleted. That is not an event."""

    def record_operation(
        self,
        queue: QueueRow,
        kind: QueueKind,
        *,
        reason: str | None = None,
        actor: str | None = None,
    ) -> None:
        """Record an operation on a queue as an event."""
        self.log_operation(queue, event_log.queue_item(kind, self.now, reason, actor))

    def count_stalled(self, qid: int, change: int) -> None:
        """Count the waiting jobs of a queue that have stalled (see last_chances.py)."""
        row = self.queue_by_qid(qid)
        stored = row.settings
        # SQLite files of jobq 0.1 did not count these jobs, so the count could become negative.
        counted = msgspec.structs.replace(stored, frail=max(0, stored.frail + change))
        row.packed_settings, row.dirty = settings.pack(counted), True

    def key_moved(self, qid: int, key: str, previous: int | None, state: int) -> None:
        """Count the waiting and active jobs of a key."""
        waiting = (state == WAITING) - (previous == WAITING)
        active = (state == ACTIVE) - (previous == ACTIVE)
        if waiting or active:
            self.keys_moved(qid, (key,), waiting, active)

    def keys_moved(self, qid: int, keys: Iterable[str], waiting: int, active: int) -> None:
        """The same for one job of each of these keys. A key may appear several times."""
        counts = self._keys.setdefault(qid, {})
        for key in keys:
            count = counts.get(key)
            if count is None:
                counts[key] = [waiting, active]
            else:
                count[0] += waiting
                count[1] += active

    def due_at(self, qid: int, due_ms: int) -> None:
        """A job is delayed until this time. If it is the first one due, a sleeper must know the
        time.
        """
        self.soonest[qid] = min(due_ms, self.soonest.get(qid, due_ms))

    def take_keys(self) -> dict[int, dict[str, list[int]]]:
        """The changes of keys by queue since the last call, as [waiting, active]. The caller writes
        them.
        """
        keys, self._keys = self._keys, {}
        return keys

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

    def looked(self, queue: QueueRow) -> bool:
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
