"""One request inside a transaction: reads and writes rows, and records what the request does.

Every change of a job's state goes through `move`, or `record_batch` on the hot paths. So the event
log, the counters, the metrics and the wake-ups always agree with the rows. `flush` writes them
before the transaction ends.

A dialect implements the methods of `Dialect`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

import msgspec

from jobq.core.records import event_log
from jobq.core.records.jobs import Failure, QueueName
from jobq.core.records.states import Kind, QueueKind
from jobq.core.rules.outcomes import error_text
from jobq.errors import CorruptStore
from jobq.stores.relational import packed
from jobq.stores.relational.dialect import Dialect
from jobq.stores.relational.mailbox import Notice
from jobq.stores.relational.packed import event_meta, pack_failure
from jobq.stores.relational.rows import ACTIVE, DELAYED, WAITING, ClaimedJob, Job, QueueRow

# What a process remembers between transactions, so that it need not be read again.


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
    watched: bool = False  # a caller waits for its end


class Beyond(msgspec.Struct, gc=False):
    """Ended jobs of a queue beyond the number that is kept (upkeep.retain)."""

    cap: int  # the number
    counted: int = 0  # ended jobs when this was last looked up
    newest: tuple[int, int] | None = None  # at_ms and pk of the newest one to remove; None: removed


class Memory:
    """Caches of one connection. Any of them may be emptied: then the rows are read again."""

    def __init__(self, incarnation: str = "") -> None:
        self.incarnation = incarnation  # part of every event's id
        self.granted: dict[str, Granted] = {}  # by token
        self.deputies: dict[int, float] = {}  # by queue: no deputies until then (monotonic clock)
        self.unreadable: set[int] = set()  # queues whose settings cannot be read, as was logged
        self.beyond: dict[tuple[int, int], Beyond] = {}  # by queue and state
        self.ticked_qid = 0  # the queue the last tick got to
        self.unvisited = 0  # queues that this round of ticks has not visited yet; 0: a new round
        self.swept_keys: dict[int, str] = {}  # by queue: the last key that a tick looked at
        self.swept: dict[str, tuple[int | str, ...]] = {}  # by sweep: the last key it looked at


log = logging.getLogger("jobq")

_KINDS = event_log.KIND_CODES

Entries = list[tuple[str | None, list[event_log.Item]]]
"""What a request appends to the log of one queue: events with their worker, in order."""


def add_events(entries: Entries, worker: str | None, items: Sequence[event_log.Item]) -> None:
    """Add events. An entry has one worker, and the order of the events stays."""
    if entries and entries[-1][0] == worker:
        entries[-1][1].extend(items)
    else:
        entries.append((worker, list(items)))


class Tx(Dialect):
    """The time of a request, and what it has done so far."""

    tells_later = False
    """Whether the dialect looks after the commit who sleeps and who listens."""

    def __init__(self, now: int, memory: Memory, ahead: int = 0) -> None:
        self.now = now
        self.ahead = ahead  # ms that the store's time is ahead of a clock that was set back
        self.memory = memory
        self.notices: list[Notice] = []
        self.freed: dict[int, int] = {}  # by queue: how many fewer jobs are active
        self.changed_keys: dict[int, dict[str, list[int]]] = {}
        self.woken: dict[int, int] = {}
        # Queues whose next job the claim has left, because the worker is not alone.
        self.last_chances: set[int] = set()
        self.soonest: dict[int, int] = {}
        self.ended: list[tuple[int, str]] = []  # watched jobs that ended
        # Watched jobs whose runs stored progress or log lines.
        self.noted: list[tuple[int, QueueName, str]] = []
        self.wanted: list[Job] = []  # jobs that ended and that others wait for
        # Jobs that open transactions of their handlers are completing (see `complete` in
        # postgres/caller.py). They are locked for as long as those stay open.
        self.completing: set[int] = set()
        # Jobs that failed in a queue with dead letters, and the number of the event that says so.
        self.failed: list[tuple[QueueRow, Job, int]] = []

    # ── queues ────────────────────────────────────────────────────────────────────────────────────

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

    def not_before(self, ms: int) -> None:
        """The request continues what happened at this time, so it is not older."""
        self.now = max(self.now, ms)

    def check_claimed(self, jobs: Sequence[ClaimedJob]) -> None:
        """Raise if the request must start over, because others write at the same time."""

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
        meta = None
        if job.options is not None and (names := self.queue_by_qid(job.qid).settings.event_meta):
            meta = event_meta(job.options, names)
        item = event_log.with_later(item, job.actor, meta)
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
        """Count the waiting jobs of a queue that have stalled (see limits.py)."""
        row = self.queue_by_qid(qid)
        stored = row.settings
        # SQLite files of jobq 0.1 did not count these jobs, so the count could become negative.
        counted = msgspec.structs.replace(stored, frail=max(0, stored.frail + change))
        row.packed_settings, row.dirty = packed.pack_settings(counted), True

    def key_moved(self, qid: int, key: str, previous: int | None, state: int) -> None:
        """Count the waiting and active jobs of a key."""
        waiting = (state == WAITING) - (previous == WAITING)
        active = (state == ACTIVE) - (previous == ACTIVE)
        if waiting or active:
            self.keys_moved(qid, (key,), waiting, active)

    def look(self, qid: int, id: str) -> Job | None:
        """Like `find`, but never locks the job and waits for nobody."""
        return self.find(qid, id)

    def find_free(self, qid: int, id: str) -> Job | None:
        """Like `find`, but a job that its handler is completing is added to `completing`, and not
        locked."""
        return self.find(qid, id)

    def job_free(self, pk: int) -> Job | None:
        """The same by number."""
        return self.job(pk)

    def left_active(self, job: Job) -> None:
        """A transaction of its handler has completed a job: its key and its slot are free now."""
        if job.key is not None:
            self.key_moved(job.qid, job.key, ACTIVE, job.state)
        self.freed[job.qid] = self.freed.get(job.qid, 0) + 1

    def keys_moved(self, qid: int, keys: Iterable[str], waiting: int, active: int) -> None:
        """The same for one job of each of these keys. A key may appear several times."""
        counts = self.changed_keys.setdefault(qid, {})
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
        keys, self.changed_keys = self.changed_keys, {}
        return keys
