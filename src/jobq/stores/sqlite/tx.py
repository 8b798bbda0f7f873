"""A request inside a transaction of a SQLite database.

This process is the only writer during a transaction, so the rows of queues are kept between
transactions until another process writes. They hold the counters, the metrics of the running minute
and the end of the event log.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import apsw

from jobq.core.records import event_log
from jobq.core.records.defaults import DAY_MS
from jobq.core.records.jobs import QueueName
from jobq.stores.relational.rows import (
    FIGURE_OF_KIND,
    RUN_MS,
    WAIT_MS,
    WAITING,
    NewJob,
    QueueRow,
    Row,
)
from jobq.stores.relational.signals import SLEEP_MS
from jobq.stores.relational.tx import Entries, Memory, Tx, add_events
from jobq.stores.relational.upkeep import Sweep
from jobq.stores.sqlite import damage, repair, trimming
from jobq.stores.sqlite.mailbox import alive
from jobq.stores.sqlite.statements import SQL, queue_row, values

# What a process remembers of a SQLite file between transactions.


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


WORKERS = 10_000
"""Workers whose last exchange a process remembers."""


class SqliteTx(Tx):
    """The connection and the time of a request, and what it has done so far."""

    sql = SQL
    # 12 µs for one job. The single statement for a larger claim builds temporary tables first: 40
    # µs for one job.
    few = 10
    sweeps = (
        Sweep("next_workers", "delete_worker", ("",), DAY_MS),
        Sweep("next_calls", "delete_call", ("",), DAY_MS),
        Sweep("next_listeners", "delete_listener", ("", 0), 0),
        Sweep("next_sleepers", "delete_sleeper", (0, ""), SLEEP_MS),
    )
    memory: SqliteMemory

    def __init__(
        self, connection: apsw.Connection, now: int, memory: SqliteMemory, ahead: int = 0
    ) -> None:
        super().__init__(now, memory, ahead)
        self.connection = connection
        self.execute = connection.execute
        self.many = connection.executemany
        self._entries: dict[int, Entries] = {}
        self._queues: dict[QueueName, QueueRow] = {}
        self._qids: dict[int, QueueRow] = {}

    def change(self, sql: str, parameters: Any) -> int:
        """Execute a statement. Returns how many rows it changed."""
        self.execute(sql, parameters)
        return self.connection.changes()

    def change_many(self, sql: str, rows: Iterable[Any]) -> int:
        """Execute a statement for each of these parameters. Returns how many rows it changed."""
        before = self.connection.total_changes()
        self.connection.executemany(sql, rows)
        return self.connection.total_changes() - before

    def listed(self, values: Sequence[Any]) -> str:
        """A list as a parameter for json_each."""
        return json.dumps(values)

    # ── queues ────────────────────────────────────────────────────────────────────────────────────

    def queue(self, name: QueueName) -> QueueRow | None:
        """The row of a queue, or None. The same object for the whole transaction."""
        row = self._queues.get(name)
        if row is None:
            row = self.memory.queues.get(name)
            if row is None:
                found = self.execute(SQL.hot["queue"], name).fetchone()
                if found is None:
                    return None
                row = queue_row(found)
            self.remember(row)
        return row

    def ensure_queue(self, name: QueueName) -> QueueRow:
        """The row of a queue, which is created if it does not exist."""
        row = self.queue(name)
        if row is None:
            self.execute(SQL.hot["make_queue"], name)
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
                row = queue_row(self.execute(SQL.keyed["queue_by_qid"], (qid,)).fetchone())
            self.remember(row)
        return row

    def remember(self, row: QueueRow) -> QueueRow:
        """Keep a queue's row for this transaction, and for later ones as long as no other process
        writes.
        """
        self._queues[row.qname] = self._qids[row.qid] = row
        self.memory.queues[row.qname] = self.memory.queues[row.qid] = row
        return row

    def queue_row(self, row: Row) -> QueueRow:
        return queue_row(row)

    def take_seqs(self, qid: int, n: int = 1) -> int:
        """Take n new places at the back of the queue. Returns the first of them."""
        row = self._qids.get(qid) or self.queue_by_qid(qid)
        row.seq += n
        row.dirty = True
        return row.seq - n + 1

    def count(self, queue: QueueRow, state: int) -> int:
        return queue.counts[state]

    def recount_waiting(self, queue: QueueRow, claimed: int) -> None:
        """The counter is too high if another program has deleted rows."""
        if (
            queue.counts[WAITING] != claimed
            and self.execute(SQL.hot["any_waiting"], (queue.qid,)).fetchone() is None
        ):
            queue.counts[WAITING], queue.dirty = claimed, True

    def minutes(self, queue: QueueRow, first_ms: int) -> list[tuple[int, Sequence[int]]]:
        rows = self.execute(SQL.reads["minutes"], (queue.qid, first_ms))
        found: list[tuple[int, Sequence[int]]] = [(minute, figures) for minute, *figures in rows]
        if queue.minute >= first_ms and any(queue.figures):
            found.append((queue.minute, queue.figures))
        return found

    # ── jobs ──────────────────────────────────────────────────────────────────────────────────────

    def insert_jobs(self, rows: Sequence[NewJob]) -> int:
        if len(rows) == 1:
            self.execute(SQL.hot["insert_job"], rows[0])
            return self.connection.changes()
        return self.change_many(SQL.hot["insert_job"], rows)

    def complete_jobs(self, rows: Sequence[Row]) -> bool:
        complete = SQL.hot["complete"]
        if len(rows) == 1:
            self.execute(complete, rows[0])
            return self.connection.changes() == 1
        self.execute("SAVEPOINT all_or_none")
        done = self.change_many(complete, rows) == len(rows)
        if not done:
            self.execute("ROLLBACK TO all_or_none")
        self.execute("RELEASE all_or_none")
        return done

    # ── what happened ─────────────────────────────────────────────────────────────────────────────

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
        n = len(items)
        add_events(self._entries.setdefault(qid, []), worker, items)
        row = self._qids.get(qid) or self.queue_by_qid(qid)  # runs for every call
        row.dirty = True
        if previous is not None:
            row.counts[previous] -= n
        row.counts[state] += n
        place = FIGURE_OF_KIND.get(kind)
        if place is not None or run_ms:
            figures = self._figures(row)
            if place is not None:
                figures[place] += n
            figures[WAIT_MS] += wait_ms
            figures[RUN_MS] += run_ms

    def log_operation(self, queue: QueueRow, item: event_log.Item) -> None:
        self._entries.setdefault(queue.qid, []).append((None, [item]))

    @property
    def logged(self) -> Iterable[int]:
        return self._entries.keys()

    def last_position(self, queue: QueueRow) -> int:
        return queue.pos

    def trim_log(self, queue: QueueRow, limit: int) -> int:
        return trimming.trim_log(self, queue, limit)

    def removed(self, qid: int, state: int, n: int = 1) -> None:
        row = self.queue_by_qid(qid)
        row.counts[state] -= n
        row.dirty = True

    def _figures(self, row: QueueRow) -> list[int]:
        """The figures of the current minute. Those of an earlier minute are stored first."""
        minute = self.now // 60_000 * 60_000
        if row.minute != minute:
            if any(row.figures):
                self.execute(SQL.hot["end_minute"], (row.qid, row.minute, *row.figures))
                row.figures = [0] * 9
            row.minute = minute
        return row.figures

    def last_number(self, qid: int) -> int:
        """The number of the last event of the queue, recorded by this transaction or before."""
        recorded = sum(len(items) for _, items in self._entries.get(qid, ()))
        return self.queue_by_qid(qid).logged + recorded

    def flush(self) -> None:
        """Write the event log and the rows of the queues."""
        for qid, entries in self._entries.items():
            row = self._qids.get(qid) or self.queue_by_qid(qid)
            for worker, items in entries:
                self._log(row, worker, items)
        for row in self._qids.values():
            if row.dirty:
                self.execute(SQL.hot["save_queue"], values(row))
                row.dirty = False

    def _log(self, row: QueueRow, worker: str | None, items: Sequence[event_log.Item]) -> None:
        """Append an entry to a queue's log. `logged` is the number of the log's last event."""
        entry = event_log.pack(row.logged + 1, self.memory.incarnation, self.now, worker, items)
        row.pos += 1
        row.logged += len(items)
        row.dirty = True
        self.execute(SQL.hot["log"], (row.qid, row.pos, row.logged, entry))

    # ── exchanges ─────────────────────────────────────────────────────────────────────────────────

    def repeated(self, caller: str, call: str) -> tuple[bytes | None] | None:
        # If this process remembers another call as the last one, this is not a repetition.
        if self.memory.calls.get(caller, call) != call:
            return None
        last = self.execute(SQL.hot["last_call"], (caller,)).fetchone()
        return None if last is None or last[0] != call else (last[1],)

    def remember_call(self, caller: str, call: str, stale: bytes | None) -> None:
        calls = self.memory.calls
        if len(calls) > WORKERS:
            calls.clear()
        calls[caller] = call
        self.execute(SQL.hot["remember_call"], (caller, call, self.now, stale))

    # ── sleepers and upkeep ───────────────────────────────────────────────────────────────────────

    def reachable(self, address: Sequence[Any]) -> bool:
        return alive(address[1])

    def nothing_is_due(self, queue: QueueRow) -> bool:
        """Jobs that are written in a millisecond are due in a later one."""
        return self.memory.nothing_due_ms.get(queue.qid) == self.now

    def found_nothing(self, queue: QueueRow) -> None:
        self.memory.nothing_due_ms[queue.qid] = self.now

    def patrol(self, queues: Sequence[QueueRow], limit: int) -> None:
        """Repair jobs that no index finds, and waiting jobs that no claim finds."""
        hidden = damage.patrol(self, limit)
        for queue in queues:
            hidden |= damage.misplaced(self, queue.qid, queue.mode, limit)
        if hidden:
            repair.repair(self, damage.Damage(jobs=hidden), {})
