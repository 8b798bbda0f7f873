"""What happens by the clock: promotes, recovers, expires and deletes jobs, in bounded steps.

The clock index finds the jobs whose time has come. No step reads the others.
"""

from __future__ import annotations

import logging

from jobq.core import defaults, event_log, outcomes, verdicts
from jobq.core.states import Kind
from jobq.stores.sqlite import (
    damage,
    ending,
    failed_runs,
    flows,
    holds,
    last_chances,
    repair,
    sweeps,
    waiting,
)
from jobq.stores.sqlite.codes import CANCEL, CANCELLED, ENDED, ERRED, FAILED, NOTED
from jobq.stores.sqlite.options import unpack_options
from jobq.stores.sqlite.queries import load
from jobq.stores.sqlite.rows import Job, QueueRow, read_all
from jobq.stores.sqlite.tx import HOT, KEYED, Tx

log = logging.getLogger("jobq")

SQL = load("upkeep.sql")
TIES = load("ties.sql")

LOG_EVENTS, LOG_CAP = defaults.LOG_EVENTS["sqlite"], defaults.LOG_CAP["sqlite"]
TRIM_EVENTS = 20_000
"""Events that one tick drops from a queue's log, or twice as many as were written since the last
tick if that is more.

Dropping an entry reads all its pages: the 800,000 surplus events of a bulk of a million jobs are 54
MB. Dropped at once, they held up the worker's first claims for 0.15 to 0.35 s, and 5,000 jobs
drained at half the usual rate. 20,000 take about 5 ms, and twice the rate of writing is enough to
catch up."""


def queue_due(tx: Tx, queue: QueueRow, limit: int) -> int:
    """Promote due jobs, recover stalled ones and fail expired ones of a queue. Returns how many."""
    now, steps = tx.now, 0
    if tx.memory.looked_ms.get(queue.qid) == now:
        return 0  # jobs that are written in this millisecond are due in a later one
    if queue.mode == "keyed":
        tx.execute(KEYED["free_held_keys"], (queue.qid, now))
    found = tx.execute(HOT["anything_due"], (queue.qid, now)).fetchone()
    for there, (statement, act) in zip(found, _BY_CLOCK, strict=True):
        # A job that was just promoted may be past its ttl already.
        if there or (steps and act is _expire):
            rows = tx.execute(HOT[statement], (queue.qid, now, limit)).fetchall()
            for job in read_all(rows, Job):
                act(tx, queue, job)
            steps += len(rows)
    if not steps:
        tx.memory.looked_ms[queue.qid] = now
    return steps


def tick(tx: Tx, limit: int) -> int:
    """Implements `Store.tick`. Begins with the queue after the one where the last tick stopped."""
    steps = 0
    rows = [QueueRow.of(row) for row in tx.execute(SQL["queues"]).fetchall()]
    behind = tx.memory.ticked_qid
    hidden = damage.patrol(tx, limit)
    for queue in sorted(rows, key=lambda row: row.qid <= behind):
        tx.remember(queue)
        if steps < limit:
            tx.memory.ticked_qid = queue.qid
        if not tx.readable(queue):
            continue
        if steps < limit:
            steps += queue_due(tx, queue, limit - steps)
        if steps < limit:
            steps += retain(tx, queue, limit - steps)
        if steps < limit:
            steps += _trim_log(tx, queue, limit - steps)
        if queue.mode == "keyed":
            tx.execute(KEYED["idle_rates"], (queue.qid, tx.now, limit))
        sweeps.minutes(tx, queue.qid, limit)
        hidden |= damage.misplaced(tx, queue.qid, queue.mode, limit)
    if hidden:
        repair.repair(tx, damage.Damage(jobs=hidden), {})
    holds.tick(tx, limit)
    steps += flows.sweep(tx, max(1, limit - steps))
    tx.execute(TIES["sweep_locks"], (tx.now, limit))
    sweeps.tick(tx, limit)
    return min(steps, limit)


def stall(tx: Tx, queue: QueueRow, job: Job) -> None:
    """Recover a job whose lease has expired.

    It returns to the front of its queue, fails if it has stalled too often, or is cancelled if
    somebody has asked for that.
    """
    job.stalls += 1
    allowed = last_chances.allowed(queue, job)
    effect = outcomes.stall(
        stalls=job.stalls, max_stalls=allowed, cancel_asked=bool(job.flags & CANCEL)
    )
    stalled = verdicts.stalled(
        attempt=job.attempt, stalls=job.stalls, max_stalls=allowed, worker=job.worker, now_ms=tx.now
    )
    failure = failed_runs.add(tx, job, stalled)
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
                SQL["past_retention"], (queue.qid, state, keep, tx.now, limit - steps)
            ).fetchall()
            steps += _let_go(tx, queue, state, rows)
        if cap is not None and queue.counts[state] > cap:
            rows = tx.execute(
                SQL["beyond_count"], (queue.qid, state, cap, limit - steps)
            ).fetchall()
            steps += _let_go(tx, queue, state, rows)
    return steps


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
        failure=verdicts.expired(ttl_ms=ttl_ms, attempt=job.attempt, now_ms=tx.now),
    )


def _overdue(tx: Tx, queue: QueueRow, job: Job) -> None:
    """End a wait whose timeout is over. The handler gets an empty value for the signal."""
    signal = unpack_options(job.options).signal
    if signal is not None:
        tx.execute(TIES["add_signal"], (job.pk, signal, b""))
    waiting.unblock(tx, job, reason="timeout")


_BY_CLOCK = (("due", _promote), ("stalled", stall), ("expired", _expire), ("overdue", _overdue))


def _trim_log(tx: Tx, queue: QueueRow, limit: int) -> int:
    """Drop old entries that every registered reader has read; past the hard cap, unread ones too.

    Returns how many entries it dropped: at most `limit`, and not many more than `TRIM_EVENTS`
    events."""
    allowed = max(TRIM_EVENTS, 2 * (queue.logged - tx.memory.trimmed.get(queue.qid, queue.logged)))
    tx.memory.trimmed[queue.qid] = queue.logged
    if queue.logged <= LOG_EVENTS:
        return 0
    oldest = _within(tx.execute(SQL["oldest_entries"], (queue.qid, limit)).fetchall(), allowed)
    excess = [pos for pos, logged in oldest if logged <= queue.logged - LOG_EVENTS]
    if not excess:
        return 0
    read = tx.execute(SQL["slowest_reader"], (queue.qid,)).fetchone()[0]
    upto = excess[-1] if read is None else min(excess[-1], read)
    over = [pos for pos, logged in oldest if pos > upto and logged <= queue.logged - LOG_CAP]
    if over:
        log.error(
            "the event log of queue %s reached its hard cap: dropped %d entries that a registered "
            "reader has not acknowledged; the reader finds a gap in their place",
            queue.name,
            len(over),
        )
        upto = over[-1]
    _remember_last(tx, queue, upto)
    return tx.change(SQL["trim_log"], (queue.qid, upto))


def _within(entries: list[tuple[int, int]], events: int) -> list[tuple[int, int]]:
    """The first entry, and the following ones that together have at most so many events."""
    last = entries[0][1] + events if entries else 0
    return [(pos, logged) for pos, logged in entries if logged <= last]


def _remember_last(tx: Tx, queue: QueueRow, pos: int) -> None:
    """Store the incarnation of the last entry that is dropped: the id of the gap contains it."""
    found = tx.execute(SQL["entry_at"], (queue.qid, pos)).fetchone()
    if found is not None:
        tx.execute(SQL["trimmed"], (f"trimmed.{queue.qid}", event_log.incarnation_of(found[0])))
