"""What happens by the clock: promotes, recovers, expires and deletes, in bounded steps.

The clock index finds the jobs whose time has come. No step reads the others.
"""

from __future__ import annotations

from typing import NamedTuple

from jobq.core.records.defaults import METRICS_MS
from jobq.core.records.states import Kind
from jobq.core.rules import outcomes
from jobq.stores.relational import (
    ending,
    flows,
    history,
    holds,
    limits,
    staging,
    submission,
    waiting,
)
from jobq.stores.relational.packed import unpack_options
from jobq.stores.relational.rows import (
    CANCEL,
    CANCELLED,
    ENDED,
    ERRED,
    FAILED,
    NOTED,
    Job,
    QueueRow,
    read_all,
)
from jobq.stores.relational.tx import Beyond, Tx

# Deletes rows that processes left behind: workers that are gone, calls that nobody will repeat,
# dead listeners.
#
# A sweep looks at a bounded number of rows per tick, in the order of the table's primary key, and
# the next tick continues after the last one. So a tick costs the same however many rows there are.


class Sweep(NamedTuple):
    """A table to sweep: the statements that read and delete its rows, and how long a row outlives
    its time."""

    read: str
    delete: str
    start: tuple[int | str, ...]  # sorts before every primary key of the table
    kept_ms: int


def sweep(tx: Tx, limit: int) -> None:
    """Look at the next `limit` rows of each table and delete the expired ones."""
    for sweep in tx.sweeps:
        after = tx.memory.swept.get(sweep.read, sweep.start)
        rows = tx.execute(tx.sql.upkeep[sweep.read], (*after, limit)).fetchall()
        for *key, time_ms in rows:
            if time_ms < tx.now - sweep.kept_ms:
                tx.execute(tx.sql.upkeep[sweep.delete], key)
        tx.memory.swept[sweep.read] = tuple(rows[-1][:-1]) if len(rows) == limit else sweep.start


def sweep_minutes(tx: Tx, qid: int, limit: int) -> None:
    """Delete metrics of a queue that are older than they are kept."""
    tx.execute(tx.sql.upkeep["sweep_minutes"], (qid, tx.now - METRICS_MS, limit))


EXACT = 1_000
"""Up to this count, exactly as many ended jobs are kept as the queue says. Reading that many
entries of an index takes less than a millisecond."""

KEYS = 500
"""Keys of a queue that one tick looks at. It takes about a millisecond at any number of keys."""


def queue_due(tx: Tx, queue: QueueRow, limit: int) -> int:
    """Promote due jobs, recover stalled ones and fail expired ones of a queue. Returns how many."""
    now, steps = tx.now, 0
    if tx.nothing_is_due(queue):
        return 0
    if queue.mode == "keyed":
        tx.execute(tx.sql.keyed["free_held_keys"], (queue.qid, now))
    found = tx.execute(tx.sql.hot["anything_due"], (queue.qid, now)).fetchone()
    for there, (statement, act) in zip(found, _BY_CLOCK, strict=True):
        # A job that was just promoted may be past its ttl already.
        if there or (steps and act is _expire):
            rows = tx.execute(tx.sql.hot[statement], (queue.qid, now, limit)).fetchall()
            for job in read_all(rows, Job):
                act(tx, queue, job)
            steps += len(rows)
    if not steps:
        tx.found_nothing(queue)
    return steps


def tick_queue(tx: Tx, queue: QueueRow, limit: int) -> int:
    """The part of a tick that concerns one queue. Returns how many steps it took."""
    steps = 0
    if steps < limit:
        steps += queue_due(tx, queue, limit - steps)
    if steps < limit:
        steps += retain(tx, queue, limit - steps)
    if steps < limit:
        steps += tx.trim_log(queue, limit - steps)
    if queue.mode == "keyed":
        _forget_keys(tx, queue.qid)
    sweep_minutes(tx, queue.qid, max(1, limit))
    return steps


def _forget_keys(tx: Tx, qid: int) -> None:
    """Delete keys without jobs whose rate is idle, among the next KEYS of a queue."""
    after = tx.memory.swept_keys.pop(qid, "")
    rows = tx.execute(tx.sql.keyed["keys_after"], (qid, after, tx.now, KEYS)).fetchall()
    if idle := [key for key, is_idle in rows if is_idle]:
        tx.execute(tx.sql.keyed["delete_keys"], (qid, tx.listed(idle)))
    if len(rows) == KEYS:
        tx.memory.swept_keys[qid] = rows[-1][0]


def tick_rest(tx: Tx, limit: int) -> int:
    """The part of a tick that concerns no single queue. Returns how many steps it took."""
    most = max(1, limit)
    holds.tick(tx, most)
    steps = submission.tick(tx, most) + staging.sweep(tx, most)
    tx.execute(tx.sql.ties["sweep_locks"], (tx.now, most))
    sweep(tx, most)
    return steps


def stall(tx: Tx, queue: QueueRow, job: Job) -> None:
    """Recover a job whose lease has expired.

    It returns to the front of its queue, fails if it has stalled too often, or is cancelled if
    somebody has asked for that.
    """
    job.stalls += 1
    allowed = limits.allowed(queue, job)
    effect = outcomes.stall(
        stalls=job.stalls, max_stalls=allowed, cancel_asked=bool(job.flags & CANCEL)
    )
    stalled = outcomes.stall_failure(
        attempt=job.attempt, stalls=job.stalls, max_stalls=allowed, worker=job.worker, now_ms=tx.now
    )
    failure = history.add_failed_run(tx, job, stalled)
    if effect.kind is Kind.CANCELLED:
        ending.end(tx, queue, job, CANCELLED, reason=job.reason or "cancelled")
    elif effect.kind is Kind.FAILED:
        ending.end(tx, queue, job, FAILED, failure=failure)
    else:
        waiting.wait(tx, job, Kind.STALLED, "front", reason="stalled")


def retain(tx: Tx, queue: QueueRow, limit: int) -> int:
    """Delete records of ended jobs: those past their retention, and the oldest beyond the count.

    Records whose ids the callers chose do not count.
    """
    steps = 0
    cap = queue.settings.retention.count
    for state in ENDED:
        for keep in (0, 1):
            rows = tx.execute(
                tx.sql.upkeep["past_retention"], (queue.qid, state, keep, tx.now, limit - steps)
            ).fetchall()
            steps += _let_go(tx, queue, state, rows)
        if cap is not None:
            steps += _trim(tx, queue, state, cap, limit - steps)
    return steps


def _trim(tx: Tx, queue: QueueRow, state: int, cap: int, limit: int) -> int:
    """Delete the oldest records of a state beyond the newest `cap`.

    To find the newest one to delete, the store reads `cap` entries of an index. So above EXACT
    records that is done once per hundredth of them, and a few more are kept meanwhile.
    """
    count = tx.count(queue, state)
    if count <= cap or limit <= 0:
        return 0
    beyond = tx.memory.beyond.get((queue.qid, state))
    if beyond is None or beyond.cap != cap or cap <= EXACT:
        beyond = tx.memory.beyond[queue.qid, state] = Beyond(cap)
    beyond.counted = min(beyond.counted, count)
    if beyond.newest is None and (not beyond.counted or count - beyond.counted >= cap // 100):
        beyond.newest = tx.execute(
            tx.sql.upkeep["newest_beyond"], (queue.qid, state, cap)
        ).fetchone()
        beyond.counted = count
    if beyond.newest is None:
        return 0
    rows = tx.execute(
        tx.sql.upkeep["beyond_count"], (queue.qid, state, *beyond.newest, limit)
    ).fetchall()
    if len(rows) < limit:
        beyond.newest = None
    beyond.counted -= len(rows)
    return _let_go(tx, queue, state, rows)


def _let_go(tx: Tx, queue: QueueRow, state: int, rows: list[tuple[int, int]]) -> int:
    plain = [pk for pk, flags in rows if not flags & (NOTED | ERRED)]
    if plain:
        ending.forget_plain(tx, queue.qid, state, plain)
    for job in tx.load([pk for pk, flags in rows if flags & (NOTED | ERRED)]):
        ending.forget(tx, job)
    return len(rows)


def _promote(tx: Tx, queue: QueueRow, job: Job) -> None:
    at_ms = unpack_options(job.options).at_ms if tx.ahead else None
    if outcomes.too_early(at_ms, attempt=job.attempt, now_ms=tx.now, ahead_ms=tx.ahead):
        job.at_ms = outcomes.due_ms(now_ms=tx.now, at_ms=at_ms, ahead_ms=tx.ahead)
        tx.save(job)
    else:
        waiting.when_due(tx, job, Kind.PROMOTED)


def _expire(tx: Tx, queue: QueueRow, job: Job) -> None:
    ttl_ms = unpack_options(job.options).ttl_ms or 0
    ending.end(
        tx,
        queue,
        job,
        FAILED,
        failure=outcomes.ttl_failure(ttl_ms=ttl_ms, attempt=job.attempt, now_ms=tx.now),
    )


def _overdue(tx: Tx, queue: QueueRow, job: Job) -> None:
    """End a wait whose timeout is over. The handler gets an empty value for the signal.

    A job that has never started waits for no signal: a caller's transaction has put it."""
    if job.attempt == 0:
        flows.decide(tx, job.pk)
        return
    signal = unpack_options(job.options).signal
    if signal is not None:
        tx.execute(tx.sql.ties["add_signal"], (job.pk, signal, b""))
    waiting.unblock(tx, job, reason="timeout")


_BY_CLOCK = (("due", _promote), ("stalled", stall), ("expired", _expire), ("overdue", _overdue))
