"""One request inside a transaction: reads and writes rows, and records what the request does.

Every change of a job's state goes through `move`, or `record_batch` on the hot paths. So the event
log, the counters, the metrics and the wake-ups always agree with the rows. `flush` writes them
before the transaction ends.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import apsw
import msgspec

from jobq.core import event_log
from jobq.core.records import Failure, QueueName
from jobq.core.states import Kind, QueueKind
from jobq.core.verdicts import error_text
from jobq.errors import CorruptStore
from jobq.stores.sqlite import settings
from jobq.stores.sqlite.codes import ACTIVE, DELAYED, WAITING
from jobq.stores.sqlite.mailbox import Notice
from jobq.stores.sqlite.memory import Memory
from jobq.stores.sqlite.options import event_meta, pack_failure
from jobq.stores.sqlite.queries import load
from jobq.stores.sqlite.rows import Job, QueueRow, read, read_all

log = logging.getLogger("jobq")

HOT = load("hot.sql")
KEYED = load("keyed.sql")

_STARTED, _RETRIED, _STALLED = (
    event_log.KIND_CODES[k] for k in (Kind.STARTED, Kind.RETRIED, Kind.STALLED)
)
_KINDS = event_log.KIND_CODES
# The kinds of events that metrics count, with their place in rows.FIGURES.
_MINUTE = {
    _KINDS[Kind.ACCEPTED]: 0,
    _STARTED: 1,
    _KINDS[Kind.COMPLETED]: 2,
    _KINDS[Kind.FAILED]: 3,
    _KINDS[Kind.CANCELLED]: 4,
    _RETRIED: 5,
    _STALLED: 6,
}
_WAIT, _RUN = 7, 8


class Tx:
    """The connection and the time of a request, and what it has done so far."""

    def __init__(
        self, connection: apsw.Connection, now: int, memory: Memory, ahead: int = 0
    ) -> None:
        self.connection = connection
        self.execute: Callable[..., Any] = connection.execute
        self.now = now
        self.ahead = ahead  # ms that the store's time is ahead of a clock that was set back
        self.memory = memory
        self.notices: list[Notice] = []
        self._entries: dict[int, list[tuple[str | None, list[event_log.Item]]]] = {}
        self._freed: dict[int, int] = {}
        self._queues: dict[QueueName, QueueRow] = {}
        self._qids: dict[int, QueueRow] = {}
        self._keys: dict[int, dict[str, list[int]]] = {}
        self.woken: dict[int, int] = {}
        # Queues whose next job the claim has left, because the worker is not alone.
        self.last_chances: set[int] = set()
        self.soonest: dict[int, int] = {}
        self.ended: list[tuple[int, str]] = []  # watched jobs that ended
        self.wanted: list[Job] = []  # jobs that ended and that others wait for
        # Jobs that failed in a queue with dead letters, and the number of the event that says so.
        self.failed: list[tuple[QueueRow, Job, int]] = []

    def change(self, sql: str, parameters: Any) -> int:
        """Execute a statement. Returns how many rows it changed."""
        self.execute(sql, parameters)
        return self.connection.changes()

    def change_many(self, sql: str, rows: Iterable[Any]) -> int:
        """Execute a statement for each of these parameters. Returns how many rows it changed."""
        before = self.connection.total_changes()
        self.connection.executemany(sql, rows)
        return self.connection.total_changes() - before

    # ── rows ──────────────────────────────────────────────────────────────────────────────────────

    def queue(self, name: QueueName) -> QueueRow | None:
        """The row of a queue, or None. The same object for the whole transaction."""
        row = self._queues.get(name)
        if row is None:
            row = self.memory.queues.get(name)
            if row is None:
                found = self.execute(HOT["queue"], name).fetchone()
                if found is None:
                    return None
                row = QueueRow.of(found)
            self.remember(row)
        return row

    def ensure_queue(self, name: QueueName) -> QueueRow:
        """The row of a queue, which is created if it does not exist."""
        row = self.queue(name)
        if row is None:
            self.execute(HOT["make_queue"], name)
            row = self.queue(name)
            assert row is not None
        elif not row.listed:
            row.listed, row.dirty = 1, True
        return row

    def queue_by_qid(self, qid: int) -> QueueRow:
        """The row of a queue by its number."""
        row = self._qids.get(qid)
        if row is None:
            row = self.memory.queues.get(qid)
            if row is None:
                row = QueueRow.of(self.execute(KEYED["queue_by_qid"], (qid,)).fetchone())
            self.remember(row)
        return row

    def remember(self, row: QueueRow) -> QueueRow:
        """Keep a queue's row for this transaction, and for later ones as long as no other process
        writes.
        """
        self._queues[row.qname] = self._qids[row.qid] = row
        self.memory.queues[row.qname] = self.memory.queues[row.qid] = row
        return row

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

    def take_places(self, qid: int, n: int = 1) -> int:
        """Take n new places at the back of the queue. Returns the first of them."""
        row = self.queue_by_qid(qid)
        row.seq += n
        row.dirty = True
        return row.seq - n + 1

    def load(self, pks: Iterable[int]) -> list[Job]:
        """The rows of jobs by number, in the order of the queue."""
        rows = self.execute(HOT["load_jobs"], (as_json(list(pks)),)).fetchall()
        return read_all(rows, Job)

    def find(self, qid: int, id: str) -> Job | None:
        """The row of a job by id."""
        row = self.execute(HOT["find_job"], (qid, id)).fetchone()
        return None if row is None else read(row, Job)

    def job(self, pk: int) -> Job | None:
        """The row of a job by number."""
        row = self.execute(HOT["load_job"], (pk,)).fetchone()
        return None if row is None else read(row, Job)

    def save(self, job: Job) -> None:
        """Write the row of a job."""
        self.execute(HOT["save_job"], job.values())

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
        self._add_events(qid, worker, items)
        row = self.queue_by_qid(qid)
        row.dirty = True
        if previous is not None:
            row.counts[previous] -= n
            if previous == ACTIVE:
                self._freed[qid] = self._freed.get(qid, 0) + n
        row.counts[state] += n
        if state == ACTIVE:
            self._freed[qid] = self._freed.get(qid, 0) - n
        place = _MINUTE.get(kind)
        if place is not None or run_ms:
            figures = self._figures(row)
            if place is not None:
                figures[place] += n
            figures[_WAIT] += wait_ms
            figures[_RUN] += run_ms
        if state == WAITING and previous != WAITING:
            self.woken[qid] = self.woken.get(qid, 0) + n

    def _add_events(self, qid: int, worker: str | None, items: Sequence[event_log.Item]) -> None:
        entries = self._entries.setdefault(qid, [])
        if entries and entries[-1][0] == worker:
            entries[-1][1].extend(items)
        else:  # an entry has one worker, and the order of the events stays
            entries.append((worker, list(items)))

    def record_operation(
        self,
        queue: QueueRow,
        kind: QueueKind,
        *,
        reason: str | None = None,
        actor: str | None = None,
    ) -> None:
        """Record an operation on a queue as an event."""
        self._add_events(queue.qid, None, [event_log.queue_item(kind, self.now, reason, actor)])

    def count_stalled(self, qid: int, change: int) -> None:
        """Count the waiting jobs of a queue that have stalled (see last_chances.py)."""
        row = self.queue_by_qid(qid)
        stored = row.settings
        # Files of jobq 0.1 did not count these jobs, so the count could become negative.
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

    def removed(self, qid: int, state: int, n: int = 1) -> None:
        """Records of ended jobs were deleted. That is not an event."""
        row = self.queue_by_qid(qid)
        row.counts[state] -= n
        row.dirty = True

    # ── the end ───────────────────────────────────────────────────────────────────────────────────

    def _figures(self, row: QueueRow) -> list[int]:
        """The figures of the current minute. Those of an earlier minute are stored first."""
        minute = self.now // 60_000 * 60_000
        if row.minute != minute:
            if any(row.figures):
                self.execute(HOT["end_minute"], (row.qid, row.minute, *row.figures))
                row.figures = [0] * 9
            row.minute = minute
        return row.figures

    def take_keys(self) -> dict[int, dict[str, list[int]]]:
        """The changes of keys by queue since the last call, as [waiting, active]. The caller writes
        them.
        """
        keys, self._keys = self._keys, {}
        return keys

    def last_number(self, qid: int) -> int:
        """The number of the last event of the queue, recorded by this transaction or before."""
        recorded = sum(len(items) for _, items in self._entries.get(qid, ()))
        return self.queue_by_qid(qid).logged + recorded

    def flush(self) -> None:
        """Write the event log and the rows of the queues."""
        for qid, entries in self._entries.items():
            row = self.queue_by_qid(qid)
            for worker, items in entries:
                self._log(row, worker, items)
        for row in self._qids.values():
            if row.dirty:
                self.execute(HOT["save_queue"], row.values())
                row.dirty = False

    def _log(self, row: QueueRow, worker: str | None, items: Sequence[event_log.Item]) -> None:
        """Append an entry to a queue's log. `logged` is the number of the log's last event."""
        entry = event_log.pack(row.logged + 1, self.memory.incarnation, self.now, worker, items)
        row.pos += 1
        row.logged += len(items)
        row.dirty = True
        self.execute(HOT["log"], (row.qid, row.pos, row.logged, entry))

    @property
    def freed(self) -> Iterable[int]:
        """The queues that have fewer active jobs than before."""
        return [qid for qid, n in self._freed.items() if n > 0]

    @property
    def logged(self) -> Iterable[int]:
        """The queues whose log has grown."""
        return self._entries.keys()


def as_json(values: Sequence[Any]) -> str:
    """A list as a parameter for json_each."""
    return json.dumps(values)
