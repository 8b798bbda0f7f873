"""A tick of PostgreSQL: a short transaction for each queue that has something to do.

One transaction for all queues would hold the locks of all of them until its commit.
"""

from __future__ import annotations

from typing import NamedTuple

from jobq.core.records.defaults import METRICS_MS
from jobq.core.records.jobs import QueueName
from jobq.core.records.queues import Limits
from jobq.errors import CorruptStore
from jobq.stores.postgres import caller, event_log, log_segments, snapshots
from jobq.stores.postgres.memory import PostgresMemory
from jobq.stores.postgres.queries import SQL
from jobq.stores.postgres.tx import PostgresTx
from jobq.stores.relational import upkeep
from jobq.stores.relational.rows import QUEUE, QueueRow, Row

CALLS = 20_000
"""Exchanges that one tick forgets at the most: more than a fleet makes between two ticks."""


QUEUES = 500
"""Queues that one tick looks at. A look at an idle one takes some 20 µs."""
KEYED = 25
"""Queues with keys and nothing else to do that one tick visits, each in a transaction. A visit only
forgets keys without jobs."""


class Todo(NamedTuple):
    """A queue that needs a tick."""

    qid: int
    queue: QueueName


class TickPlan(NamedTuple):
    """The next queues: all of them, and those that need a tick, in order."""

    qids: list[int]
    todo: list[Todo]


def plan(tx: PostgresTx, full: bool) -> TickPlan:
    """The next queues that need a tick, beginning after the one where the last tick stopped.

    `full`: read from the beginning, and not from the floors."""
    memory = tx.memory
    qids: list[int] = []
    found: list[Todo] = []
    only_keyed: list[Todo] = []
    tx.full = full
    if not memory.unvisited:  # a new round
        memory.unvisited = _number_of_queues(tx)
    for row in _next_queues(tx, min(memory.unvisited, QUEUES)):
        queue = QueueRow.of(row[: len(QUEUE)])
        qids.append(queue.qid)
        due, logged, ended, asleep, keys = row[len(QUEUE) :]
        needed = (
            due
            or asleep
            or logged > event_log.LOG_EVENTS
            or _held_before(queue, tx.now)
            or _too_many(queue, ended)
        )
        if (needed or keys) and tx.readable(queue):
            (found if needed else only_keyed).append(Todo(queue.qid, queue.qname))
        if not due:
            tx.nothing_left(queue.qid)
    if not qids:
        memory.unvisited = 0
    place = {qid: n for n, qid in enumerate(qids)}
    todo = sorted(found + _some(only_keyed, memory), key=lambda each: place[each.qid])
    return TickPlan(qids, todo)


def _some(keyed: list[Todo], memory: PostgresMemory) -> list[Todo]:
    """KEYED of these queues: others the next time."""
    first = memory.keyed_turns * KEYED % len(keyed) if len(keyed) > KEYED else 0
    memory.keyed_turns += 1
    return (keyed[first:] + keyed[:first])[:KEYED]


def record_progress(memory: PostgresMemory, plan: TickPlan, stopped_at: Todo | None) -> bool:
    """Remember how far a tick has got: through all queues of its plan, or up to one that it could
    not visit. Returns whether this round has more queues."""
    done = plan.qids if stopped_at is None else plan.qids[: plan.qids.index(stopped_at.qid)]
    if done:
        memory.ticked_qid = done[-1]
    memory.unvisited = max(0, memory.unvisited - len(done))
    return memory.unvisited > 0


def _number_of_queues(tx: PostgresTx) -> int:
    (number,) = tx.execute(SQL.upkeep["queues"]).fetchone()
    return int(number)


def _next_queues(tx: PostgresTx, number: int) -> list[Row]:
    """The next queues after the last one, and the first ones after those."""
    times, behind = (tx.now, tx.now - METRICS_MS), tx.memory.ticked_qid
    rows: list[Row] = tx.execute(SQL.upkeep["to_tick"], (*times, behind, number)).fetchall()
    if len(rows) < number:
        again = tx.execute(SQL.upkeep["to_tick"], (*times, 0, number - len(rows))).fetchall()
        rows += [row for row in again if row[0] <= behind]
    return rows


def tick_queue(tx: PostgresTx, name: QueueName, limit: int, full: bool) -> int:
    """The part of a tick that concerns one queue. Returns how many steps it took."""
    tx.full = full
    queue = tx.queue(name)
    if queue is None or not tx.readable(queue):
        return 0
    steps = upkeep.tick_queue(tx, queue, limit)
    if steps < limit:
        tx.nothing_left(queue.qid)
    tx.read_oldest_ended(queue.qid)
    if _held_before(queue, tx.now):
        queue.held_ms, queue.dirty = 0, True  # the queue is plain again
    if not queue.paused:
        # A worker that missed its wake-up sleeps beside waiting jobs: wake it now.
        tx.woken.setdefault(queue.qid, 1)
    return steps


def tick_rest(tx: PostgresTx, limit: int) -> int:
    """The part of a tick that concerns no single queue. Returns how many steps it took."""
    steps = upkeep.tick_rest(tx, limit)
    steps += caller.follow_up(tx)
    tx.sweep_calls(CALLS)
    log_segments.drop_kept(tx)
    snapshots.sweep(tx)
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
