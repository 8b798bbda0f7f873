"""A tick of SQLite: one transaction, which looks at a bounded number of queues."""

from __future__ import annotations

from jobq.core.records.defaults import METRICS_MS
from jobq.stores.relational import upkeep
from jobq.stores.relational.rows import ENDED, QueueRow
from jobq.stores.sqlite import trimming
from jobq.stores.sqlite.statements import EVERY_QUEUE_COLUMN, SQL, queue_row
from jobq.stores.sqlite.tx import SqliteTx

QUEUES = 500
"""Queues that one tick looks at. Nearly all are idle, and a look at one of those takes some 15 µs.
A visit to each of 10,000 idle queues in one transaction took 1.5 s, in which nobody could write."""

VISITS = 50
"""Queues that one tick visits because there may be something to do. A visit takes some 0.2 ms."""


def tick(tx: SqliteTx, limit: int) -> int:
    """Implements `Store.tick`. Begins with the queue after the one where the last tick stopped.

    A round looks at all queues. A call looks at QUEUES of them at the most and visits VISITS, and
    returns `limit` while the round has more."""
    memory = tx.memory
    left = memory.unvisited or _number_of_queues(tx)
    steps = looked = 0
    visited: list[QueueRow] = []
    for queue, due in _next_queues(tx, min(left, QUEUES)):
        if steps >= limit or len(visited) >= VISITS:
            break
        looked += 1
        memory.ticked_qid = queue.qid
        if tx.readable(queue) and (due or _keeps_too_much(queue)):
            tx.remember(queue)
            steps += upkeep.tick_queue(tx, queue, limit - steps)
            visited.append(queue)
    memory.unvisited = max(0, left - looked) if looked else 0
    tx.patrol(visited, max(1, limit))
    steps += upkeep.tick_rest(tx, limit - steps)
    return limit if memory.unvisited else min(steps, limit)


def _number_of_queues(tx: SqliteTx) -> int:
    (number,) = tx.execute(SQL.upkeep["queues"]).fetchone()
    return int(number)


def _next_queues(tx: SqliteTx, number: int) -> list[tuple[QueueRow, bool]]:
    """The next queues after the last one, and the first ones after those. With each, whether a
    tick may have something to do there."""
    times = (tx.now, tx.now - METRICS_MS)
    behind = tx.memory.ticked_qid
    rows = tx.execute(SQL.upkeep["next_queues"], (*times, behind, number)).fetchall()
    if len(rows) < number:
        again = tx.execute(SQL.upkeep["next_queues"], (*times, 0, number - len(rows))).fetchall()
        rows += [row for row in again if row[0] <= behind]
    return [(queue_row(row[: len(EVERY_QUEUE_COLUMN)]), bool(row[-1])) for row in rows]


def _keeps_too_much(queue: QueueRow) -> bool:
    """Whether a queue has a longer log, or more ended jobs, than it keeps."""
    most = queue.settings.retention.count
    return queue.logged > trimming.LOG_EVENTS or (
        most is not None and any(queue.counts[state] > most for state in ENDED)
    )
