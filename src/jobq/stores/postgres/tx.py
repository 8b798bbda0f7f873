"""A request inside a transaction of a PostgreSQL database.

A request that writes locks the rows it decides by: the row of each queue it names, and each job it
reads. So requests on one queue run one after the other, except the plain ones of fast.py, which
lock only jobs. Statements without a reply that matters are queued, and travel with the next one
that has one, or with the COMMIT.

What a request appends to the event log is collected in event_log.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from jobq.core.records.defaults import DAY_MS, MINUTE_MS
from jobq.core.records.jobs import QueueName
from jobq.core.rules.clock import JITTER_MS
from jobq.stores.postgres import event_log, failures, mailbox
from jobq.stores.postgres.clock import elapsed
from jobq.stores.postgres.event_log import LoggingTx
from jobq.stores.postgres.floors import FIRST, STATEMENTS_WITH_FLOORS
from jobq.stores.postgres.link import Link, Reply, StatementFailed
from jobq.stores.postgres.memory import PostgresMemory, saved
from jobq.stores.postgres.queries import FLOORS, SQL
from jobq.stores.relational.dialect import Rows
from jobq.stores.relational.rows import (
    ACTIVE,
    ENDED,
    ClaimedJob,
    DamagedJob,
    Job,
    Lock,
    NewJob,
    QueueRow,
    Row,
    read,
    read_all,
)
from jobq.stores.relational.signals import SLEEP_MS
from jobq.stores.relational.upkeep import Sweep

WORKERS = 10_000
"""Workers whose last exchange a handle remembers."""
CALLS_MS = 10 * MINUTE_MS
"""Milliseconds after which an exchange is forgotten. A worker repeats a call that got no reply for
as long as that takes, but the leases of a lost reply expire within minutes."""


class Asked(NamedTuple):
    """A statement that returns the time, and when it was queued (by clock.elapsed)."""

    reply: Reply
    sent: float


class PostgresTx(LoggingTx):
    """The connection and the time of a request, and what it has done so far."""

    sql = SQL
    few = 0  # one round trip for a claim of any size
    follow_up = "\x01next"  # text cannot contain the character 0
    sweeps = (
        Sweep("next_workers", "delete_worker", ("",), DAY_MS),
        Sweep("next_listeners", "delete_listener", ("", ""), 0),
        Sweep("next_sleepers", "delete_sleeper", (0, ""), SLEEP_MS),
    )
    memory: PostgresMemory

    def __init__(
        self, link: Link, now: int, memory: PostgresMemory, ahead: int = 0, *, writes: bool = True
    ) -> None:
        """`writes`: lock what is read. Otherwise the transaction is read-only."""
        super().__init__(now, memory, ahead)
        self.link = link
        self.writes = writes
        self._queues: dict[QueueName, QueueRow] = {}
        self._qids: dict[int, QueueRow] = {}
        self.asked: dict[tuple[str, Row], Reply] = {}  # statements that were executed ahead
        self._holders: dict[tuple[int, str], int | None] = {}  # numbers of jobs, by unique lock
        self._asked = False  # for places
        self._next_seq = 0
        self.tells_later = not link.pooled
        self.slept: list[QueueRow] = []  # queues in which the worker fell asleep
        self.full = False  # read indexes from the beginning, and not from their floors
        self._uses_floors = memory.floors.active
        self._began = time.monotonic()

    def execute(self, sql: str, parameters: Any = (), /) -> Rows:
        """Queue a statement. Reading its rows sends it."""
        if self.asked and (reply := self.asked.pop((sql, parameters), None)) is not None:
            return reply
        if self._uses_floors and not self.full and sql in STATEMENTS_WITH_FLOORS:
            sql, floors = STATEMENTS_WITH_FLOORS[sql]
            parameters = (*parameters, *floors(self.memory.floors, parameters))
        return self.link.execute(sql, parameters)

    def ask(self, sql: str, parameters: Row) -> None:
        """Queue a statement that the request will execute later: `execute` returns its reply.

        Only for transactions that do not write."""
        if (sql, parameters) not in self.asked:
            self.asked[sql, parameters] = self.link.execute(sql, parameters)

    def many(self, sql: str, rows: Iterable[Any], /) -> object:
        """Queue a statement for each of these parameters."""
        return self.link.many(sql, rows)

    def change(self, sql: str, parameters: Any) -> int:
        return self.link.execute(sql, parameters).changes

    def change_many(self, sql: str, rows: Sequence[Any]) -> int:
        return sum(reply.changes for reply in self.link.many(sql, rows))

    def first_rows(self, sql: str, rows: Sequence[Any]) -> list[Any]:
        """All statements first, then all replies: they share one round trip."""
        return [reply.fetchone() for reply in self.link.many(sql, rows)]

    def listed(self, values: Sequence[Any]) -> Any:
        return values

    # ── queues ────────────────────────────────────────────────────────────────────────────────────

    def lock_queues(self, names: Iterable[QueueName]) -> None:
        """Lock several queues at once, in the order of their numbers.

        Requests that lock their queues in the same order do not wait for each other in a circle.
        """
        wanted = [name for name in dict.fromkeys(names) if name not in self._queues]
        if len(wanted) == 1:
            self.queue(wanted[0])
        elif wanted:
            tenants, queues = zip(*wanted, strict=True)
            locked = self.execute(SQL.hot["lock_queues"], (tenants, queues))
            asked = self._ask_for_time()
            for row in locked.fetchall():
                self._remember(QueueRow.of(row))
            self._has_waited(asked)

    def queue(self, name: QueueName) -> QueueRow | None:
        row = self._queues.get(name)
        if row is None:
            found = self._read_queue(SQL.hot["lock_queue" if self.writes else "queue"], name)
            if found is None:
                return None
            row = self._remember(QueueRow.of(found))
        return row

    def ensure_queue(self, name: QueueName) -> QueueRow:
        row = self.queue(name)
        if row is None:
            self.execute(SQL.hot["make_queue"], name)
            row = self.queue(name)
            assert row is not None
        elif not row.listed and self.writes:
            row.listed, row.dirty = 1, True
        return row

    def queue_by_qid(self, qid: int) -> QueueRow:
        row = self._qids.get(qid)
        if row is None:
            name = "lock_queue_by_qid" if self.writes else "queue_by_qid"
            row = self._remember(QueueRow.of(self._read_queue(SQL.keyed[name], (qid,))))
        return row

    def check_unused(self, name: QueueName) -> None:
        free = self.execute(SQL.hot["not_used"], name).fetchone()
        if free is not None and not free[0]:
            raise failures.queue_used(name.queue)

    def _read_queue(self, sql: str, parameters: tuple[Any, ...]) -> Any:
        reply = self.execute(sql, parameters)
        asked = self._ask_for_time()
        found = reply.fetchone()
        self._has_waited(asked)
        return found

    def _ask_for_time(self) -> Asked | None:
        """Ask for the time when a lock is held. The reply comes with that of the lock.

        Most requests that write need places: the first reply has them, too."""
        if not self.writes:
            return None
        sent = elapsed()
        statement, self._asked = ("time" if self._asked else "seqs"), True
        return Asked(self.link.execute(SQL.hot[statement]), sent)

    def _has_waited(self, asked: Asked | None) -> None:
        """A lock was waited for. What the request does is not older than what its holder did."""
        clock = self.memory.clock
        if asked is None or clock is None:
            return
        *seqs, ms = asked.reply.fetchone() or (None,)
        if seqs:
            (self._next_seq,) = seqs
        self._continue_at(*(clock.read() if ms is None else clock.time_of_reply(ms, asked.sent)))

    def not_before(self, ms: int) -> None:
        if ms > self.now:
            super().not_before(ms)
            if self.memory.clock is not None:
                self.memory.clock.heard(ms)
                self._continue_at(*self.memory.clock.read())

    def _continue_at(self, now: int, ahead: int) -> None:
        if now >= self.now:
            self.now, self.ahead = now, ahead

    def _remember(self, row: QueueRow) -> QueueRow:
        self._queues[row.qname] = self._qids[row.qid] = row
        return row

    def take_seqs(self, qid: int, n: int = 1) -> int:
        """Places come from a sequence that all queues share, a large block for each request."""
        if not self._next_seq:
            self._next_seq, _ = self.link.execute(SQL.hot["seqs"]).fetchone() or (0, 0)
        self._next_seq += n
        return self._next_seq - n

    # ── jobs ──────────────────────────────────────────────────────────────────────────────────────

    def insert_jobs(self, rows: Sequence[NewJob]) -> int:
        if len(rows) == 1:
            inserted = self.link.execute(SQL.hot["insert_job"], rows[0])
        else:
            columns = [list(column) for column in zip(*rows, strict=True)]
            inserted = self.link.execute(SQL.hot["insert_jobs"], columns)
        ended = self.execute(SQL.hot["ended_meanwhile"], (rows[0].qid, [row.id for row in rows]))
        if ended.fetchone() is not None:
            raise _met("a job with one of these ids has ended while it was put again")
        return inserted.changes

    def complete_jobs(self, rows: Sequence[Row]) -> bool:
        if len(rows) == 1:
            return self.change(SQL.hot["complete"], rows[0]) == 1
        columns = [list(column) for column in zip(*rows, strict=True)]
        return self.change(SQL.hot["complete_all"], (*columns, len(rows))) == len(rows)

    def load(self, pks: Iterable[int]) -> list[Job]:
        numbers = list(pks)
        if self.writes:
            self.execute(SQL.hot["lock_numbers"], (numbers,))
        jobs = read_all(self.execute(SQL.hot["load_jobs"], (numbers,)).fetchall(), Job)
        return [self._after(job) for job in jobs]

    def read_job(self, row: Row) -> Job:
        try:
            return read(row, Job)
        except msgspec.ValidationError:
            return read(row, DamagedJob)

    def find(self, qid: int, id: str) -> Job | None:
        statement = SQL.hot["lock_found" if self.writes else "find_job"]
        row = self.execute(statement, (qid, id)).fetchone()
        return None if row is None else self._after(self.read_job(row))

    def job(self, pk: int) -> Job | None:
        statement = SQL.hot["lock_job" if self.writes else "load_job"]
        row = self.execute(statement, (pk,)).fetchone()
        return None if row is None else self._after(self.read_job(row))

    def _after(self, job: Job) -> Job:
        """A job that was locked. What happens to it is not older than its start or its end."""
        if self.writes:
            self.not_before((job.started_ms if job.state == ACTIVE else job.finished_ms) or 0)
        return job

    def look(self, qid: int, id: str) -> Job | None:
        row = self.execute(SQL.hot["find_job"], (qid, id)).fetchone()
        return None if row is None else self.read_job(row)

    def find_free(self, qid: int, id: str) -> Job | None:
        row = self.execute(SQL.hot["free_found"], (qid, id)).fetchone()
        if row is not None:
            return self._after(self.read_job(row))
        found = self.execute(SQL.hot["find_job"], (qid, id)).fetchone()
        return self._completing_or(found, lambda: self.find(qid, id))

    def job_free(self, pk: int) -> Job | None:
        row = self.execute(SQL.hot["free_job"], (pk,)).fetchone()
        if row is not None:
            return self._after(self.read_job(row))
        found = self.execute(SQL.hot["load_job"], (pk,)).fetchone()
        return self._completing_or(found, lambda: self.job(pk))

    def _completing_or(self, row: Any, wait: Callable[[], Job | None]) -> Job | None:
        """The job of a row that another transaction has locked. Waits for a short one."""
        if row is None:
            return None
        job = read(row, Job)
        if job.state == ACTIVE:
            free = self.execute(SQL.hot["not_completing"], (job.pk,)).fetchone()
            if free is not None and not free[0]:
                self.completing.add(job.pk)
                return job
        return wait()

    def lock_row(self, qid: int, lock: str) -> Lock | None:
        found = super().lock_row(qid, lock)
        self._holders[qid, lock] = None if found is None else found.pk
        return found

    def give_lock(self, qid: int, lock: str, to: Lock) -> None:
        if (qid, lock) not in self._holders:
            self.lock_row(qid, lock)
        self.execute(SQL.ties["take_lock"], (qid, lock, *to, self._holders[qid, lock]))
        self._holders[qid, lock] = to.pk

    def front(self, job: Job) -> int:
        """The place at which a job returns to the front of its priority.

        If claims do not look at its old place any more, that of the first job that waits."""
        floor = self.memory.floors.floor_of(job.qid, job.priority) if self._uses_floors else FIRST
        if job.key is not None or floor == FIRST:
            return job.seq
        row = self.execute(FLOORS["front"], (job.qid, job.priority, floor)).fetchone()
        return max(job.seq, self.take_seqs(job.qid) if row is None else row[0])

    def found_nothing(self, queue: QueueRow) -> None:
        """Remember it, if somebody holds a snapshot."""
        self.nothing_left(queue.qid, ended_too=False)

    def nothing_left(self, qid: int, *, ended_too: bool = True) -> None:
        """Nothing of a queue is due; with `ended_too`, no retention is over either."""
        if self._uses_floors:
            ended = time.monotonic()
            self.memory.floors.nothing_due(qid, self.now, self._began, ended)
            if ended_too:
                self.memory.floors.nothing_past(qid, self.now, self._began, ended)

    def read_oldest_ended(self, qid: int) -> None:
        """Remember which records of ended jobs are the oldest, if somebody holds a snapshot."""
        if not self._uses_floors:
            return
        floors = self.memory.floors
        asked = [
            (state, self.execute(FLOORS["oldest_ended"], (qid, state, floors.oldest(qid, state))))
            for state in ENDED
        ]
        for state, reply in asked:
            if (row := reply.fetchone()) is not None:
                floors.oldest_is(qid, state, row[0], self._began, time.monotonic())

    def check_claimed(self, jobs: Sequence[ClaimedJob]) -> None:
        """A job may be put after this request has read the clock. It cannot start before that."""
        latest = max(job.created_ms for job in jobs)
        clock = self.memory.clock
        if latest > self.now and (
            latest - self.now < JITTER_MS or (clock is not None and clock.doubtful())
        ):
            raise _met("a job was put while it was claimed")

    # ── what happened ─────────────────────────────────────────────────────────────────────────────

    def last_number(self, qid: int) -> int:
        """A number that no other event gets: events have theirs only after the commit."""
        return self.take_seqs(qid)

    def trim_log(self, queue: QueueRow, limit: int) -> int:
        return event_log.trim_log(self, queue, limit)

    def flush(self) -> None:
        """Write the event log and the rows of queues.

        The log comes last: the numbers of entries show the order in which jobs were locked."""
        for row in self._qids.values():
            if row.dirty:
                self.execute(SQL.hot["save_queue"], saved(row, self.now))
                row.dirty = False
        self.write_log()

    # ── exchanges ─────────────────────────────────────────────────────────────────────────────────

    def repeated(self, caller: str, call: str) -> tuple[bytes | None] | None:
        # If this handle remembers another call as the last one, this is not a repetition.
        if self.memory.calls.get(caller, call) != call:
            return None
        last = self.execute(SQL.hot["last_call"], (caller, call)).fetchone()
        return None if last is None else (last[1],)

    def remember_call(self, caller: str, call: str, stale: bytes | None) -> None:
        """If the same call was made at the same time, this one fails, and is repeated."""
        calls = self.memory.calls
        if len(calls) > WORKERS:
            calls.clear()
        calls[caller] = call
        self.execute(SQL.hot["remember_call"], (caller, call, self.now, stale))

    def sweep_calls(self, limit: int) -> None:
        """Forget exchanges that nobody will repeat, at most `limit`."""
        since, until = self.memory.calls_swept_ms, self.now - CALLS_MS
        row = self.execute(SQL.upkeep["sweep_calls"], (since, until, limit)).fetchone()
        if row is not None and row[0] is not None and (row[1] == limit or self._uses_floors):
            self.memory.calls_swept_ms = row[0]
        elif not self._uses_floors:
            self.memory.calls_swept_ms = 0

    # ── sleepers ──────────────────────────────────────────────────────────────────────────────────

    def reachable(self, address: Sequence[Any]) -> bool:
        """Whether the handle listens. Whether it is alive, nobody knows."""
        return mailbox.reachable(address)

    def has_sleepers(self, queue: QueueRow) -> bool:
        """True: the table of sleepers knows."""
        return True

    def set_sleepers(self, queue: QueueRow, there: bool) -> None:
        """Remember what the wake-up after the commit needs."""
        if there:
            self.slept.append(queue)

    def has_listeners(self, queue: QueueRow) -> bool:
        """True: the table of listeners knows."""
        return True

    def set_listeners(self, queue: QueueRow, there: bool) -> None:
        """Nothing to remember."""


def _met(how: str) -> StatementFailed:
    """Makes the request start over, as after a serialization failure."""
    return StatementFailed("40001", how)
