"""A tick of PostgreSQL: a short transaction for each queue that has something to do.

One transaction for all queues would hold the locks of all of them until its commit.
"""

from __future__ import annotations

from typing import NamedTuple

from jobq.core.defaults import METRICS_MS
from jobq.core.queues import Limits
from jobq.core.records import QueueName
from jobq.errors import CorruptStore
from jobq.stores.postgres import completing, held, slots, trimming
from jobq.stores.postgres.queries import SQL
from jobq.stores.postgres.tx import PostgresTx
from jobq.stores.relational import upkeep
from jobq.stores.relational.rows import QUEUE, QueueRow

CALLS = 20_000
"""Exchanges that one tick forgets at the most: more than a fleet makes between two ticks."""


class Todo(NamedTuple):
    """A queue that needs a tick."""

    qid: int
    queue: QueueName


def todo(tx: PostgresTx, full: bool) -> list[Todo]:
    """The queues that need a tick, beginning after the one where the last tick stopped.

    `full`: read from the beginning, and not from the floors."""
    found = []
    tx.full = full
    for row in tx.execute(SQL.upkeep["to_tick"], (tx.now, tx.now - METRICS_MS)).fetchall():
        queue = QueueRow.of(row[: len(QUEUE)])
        due, logged, ended, asleep = row[len(QUEUE) :]
        if (
            due
            or asleep
            or logged > trimming.LOG_EVENTS
            or queue.mode == "keyed"
            or _held_before(queue, tx.now)
            or _too_many(queue, ended)
        ) and tx.readable(queue):
            found.append(Todo(queue.qid, queue.qname))
        if not due:
            tx.nothing_left(queue.qid)
    return sorted(found, key=lambda each: each.qid <= tx.memory.ticked_qid)


def tick_queue(tx: PostgresTx, name: QueueName, limit: int, full: bool) -> int:
    """The part of a tick that concerns one queue. Returns how many steps it took."""
    tx.full = full
    queue = tx.queue(name)
    if queue is None or not tx.readable(queue):
        return 0
    tx.memory.ticked_qid = queue.qid
    steps = upkeep.tick_queue(tx, queue, limit)
    if steps < limit:
        tx.nothing_left(queue.qid)
    tx.look_at_ended(queue.qid)
    if _held_before(queue, tx.now):
        queue.held_ms, queue.dirty = 0, True  # the queue is plain again
    if not queue.paused:
        # A worker that missed its wake-up sleeps beside waiting jobs: wake it now.
        tx.woken.setdefault(queue.qid, 1)
    return steps


def tick_rest(tx: PostgresTx, limit: int) -> int:
    """The part of a tick that concerns no single queue. Returns how many steps it took."""
    steps = upkeep.tick_rest(tx, limit)
    steps += completing.follow_up(tx)
    tx.sweep_calls(CALLS)
    slots.drop_kept(tx)
    held.sweep(tx)
    return steps


def _held_before(queue: QueueRow, now: int) -> bool:
    """Whether a hold of a queue without limits is over, so that its claims may be plain again."""
    return 0 < queue.held_ms <= now and _unlimited(queue)


def _unlimited(queue: QueueRow) -> bool:
    try:
        return queue.settings.effective == Limits()
    except CorruptStore:
        return False


def _too_many(queue: QueueRow, ended: int) -> bool:
    try:
        most = queue.settings.retention.count
    except CorruptStore:
        return False
    return most is not None and ended > most
