"""What a request appends to the event log, the counters that follow, and dropping old entries.

No request writes a counter. Each appends what it changes to the event log, and numbering.py adds
it up after the commit.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from jobq.core.records import defaults, event_log
from jobq.core.records.event_log import KIND_CODES
from jobq.core.records.states import Kind
from jobq.stores.postgres.memory import PostgresMemory
from jobq.stores.postgres.queries import NUMBERING, SQL
from jobq.stores.relational.rows import ACTIVE, FIGURE_OF_KIND, RUN_MS, WAIT_MS, WAITING, QueueRow
from jobq.stores.relational.tx import Entries, Tx, add_events

if TYPE_CHECKING:
    from jobq.stores.postgres.tx import PostgresTx

_encode = msgspec.msgpack.Encoder().encode
_STARTED = KIND_CODES[Kind.STARTED]


class Changes(msgspec.Struct):
    """What the request appends to the log of one queue."""

    entries: Entries = msgspec.field(default_factory=list)
    moved: list[int] = msgspec.field(default_factory=lambda: [0] * 7)  # counters, by state code
    figures: list[int] = msgspec.field(default_factory=lambda: [0] * 9)  # rows.FIGURES


class LoggingTx(Tx):
    """The part of a request that collects events and changes of counters."""

    def __init__(self, now: int, memory: PostgresMemory, ahead: int = 0) -> None:
        super().__init__(now, memory, ahead)
        self._changes: dict[int, Changes] = {}
        self._stored: dict[int, Sequence[int]] = {}  # counters by queue, without this request

    def _of(self, qid: int) -> Changes:
        changes = self._changes.get(qid)
        if changes is None:
            changes = self._changes[qid] = Changes()
        return changes

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
        changes = self._of(qid)
        add_events(changes.entries, worker, items)
        if previous is not None:
            changes.moved[previous] -= n
        changes.moved[state] += n
        place = FIGURE_OF_KIND.get(kind)
        if place is not None:
            changes.figures[place] += n
        changes.figures[WAIT_MS] += wait_ms
        changes.figures[RUN_MS] += run_ms

    def log_operation(self, queue: QueueRow, item: event_log.Item) -> None:
        self._of(queue.qid).entries.append((None, [item]))

    @property
    def logged(self) -> Iterable[int]:
        return [qid for qid, changes in self._changes.items() if changes.entries]

    def last_position(self, queue: QueueRow) -> int:
        row = self.execute(SQL.reads["last_position"], (queue.qid,)).fetchone()
        return 0 if row is None else int(row[0])

    def entries(self, queue: QueueRow, after: int, limit: int) -> Iterator[tuple[int, bytes]]:
        rows = self.execute(SQL.reads["entries"], (queue.qid, after, limit))
        for pos, number, incarnation, at_ms, worker, items, starts in rows:
            packed = _packed_starts(starts, at_ms) if items is None else items
            yield pos, event_log.pack_packed(number, incarnation, at_ms, worker, packed)

    def removed(self, qid: int, state: int, n: int = 1) -> None:
        self._of(qid).moved[state] -= n

    def count(self, queue: QueueRow, state: int) -> int:
        stored = self._stored.get(queue.qid)
        if stored is None:
            row = self.execute(NUMBERING["counts"], (queue.qid,)).fetchone()
            stored = self._stored[queue.qid] = [0] * 8 if row is None else row
        changes = self._changes.get(queue.qid)
        return stored[state] + (0 if changes is None else changes.moved[state])

    def recount_waiting(self, queue: QueueRow, claimed: int) -> None:
        """Nothing to correct: the counter is the sum of all changes."""

    def minutes(self, queue: QueueRow, first_ms: int) -> list[tuple[int, Sequence[int]]]:
        rows = self.execute(NUMBERING["minutes"], (queue.qid, first_ms))
        return [(minute, figures) for minute, *figures in rows]

    def write_log(self) -> None:
        """Write the entries of the request."""
        for qid, changes in self._changes.items():
            moved = changes.moved if any(changes.moved) else None
            figures = changes.figures if any(changes.figures) else None
            for worker, items in changes.entries or [(None, [])]:
                packed = _encode(items) if items else None
                entry = (qid, self.now, worker, len(items), packed, moved, figures)
                if items or moved or figures:
                    self.execute(SQL.hot["log"], entry)
                moved = figures = None  # the first entry has them all
        self._changes = {}


def _packed_starts(starts: bytes, at_ms: int) -> bytes:
    try:
        return _encode(started_items(starts, at_ms))
    except ValueError:
        return starts  # damaged: the reader of the log finds that, and reports a gap


def started_items(starts: bytes, at_ms: int) -> list[event_log.Item]:
    """The events of jobs that a claim on plain queues started, from what fast.sql writes."""
    fields = iter(starts.decode().split("\0"))
    return [
        _started(numbers, id, name, at_ms)
        for numbers, id, name in zip(fields, fields, fields, strict=True)
    ]


def _started(numbers: str, id: str, name: str, at_ms: int) -> event_log.Item:
    life, attempt, failures, created_ms, due_ms = map(int, numbers.split(" "))
    return (
        _STARTED, id, life, name, None, attempt, failures, 0, ACTIVE, WAITING,
        None, None, None, created_ms, due_ms, at_ms, None,
    )  # fmt: skip


# Drops old entries of the event log, in bounded steps.
#
# An entry counts as dropped when the queue's row of `counts` says so. Its rows stay until their
# segment is truncated (log_segments.py).

log = logging.getLogger("jobq")

LOG_EVENTS, LOG_CAP = defaults.LOG_EVENTS["postgres"], defaults.LOG_CAP["postgres"]


def trim_log(tx: PostgresTx, queue: QueueRow, limit: int) -> int:
    """Drop old entries that every registered reader has read; past the hard cap, unread ones too.

    Returns how many entries it dropped: at most `limit`."""
    found = tx.execute(SQL.upkeep["log_length"], (queue.qid,)).fetchone()
    logged = 0 if found is None else found[0]
    if logged <= LOG_EVENTS:
        return 0
    oldest = tx.execute(SQL.upkeep["oldest_entries"], (queue.qid, limit)).fetchall()
    excess = [pos for pos, number, _ in oldest if number <= logged - LOG_EVENTS]
    if not excess:
        return 0
    read = tx.execute(SQL.upkeep["slowest_reader"], (queue.qid,)).fetchone()[0]
    upto = excess[-1] if read is None else min(excess[-1], read)
    over = [pos for pos, number, _ in oldest if pos > upto and number <= logged - LOG_CAP]
    if over:
        log.error(
            "the event log of queue %s reached its hard cap: dropped %d entries that a registered "
            "reader has not acknowledged; the reader finds a gap in their place",
            queue.name,
            len(over),
        )
        upto = over[-1]
    dropped = [incarnation for pos, _, incarnation in oldest if pos <= upto]
    if dropped:
        tx.execute(SQL.upkeep["trim_log"], (queue.qid, upto, dropped[-1]))
    return len(dropped)
