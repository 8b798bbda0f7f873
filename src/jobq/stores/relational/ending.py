"""Ends a job, with its lock and its schedule, and deletes records."""

from __future__ import annotations

from jobq.core.records.event_log import STATES
from jobq.core.records.jobs import Failure
from jobq.core.records.states import Kind
from jobq.core.rules import cron
from jobq.core.rules.ended import kept_ms
from jobq.stores.relational import history, locks
from jobq.stores.relational.packed import StoredSettings, unpack_options
from jobq.stores.relational.records import schedule_record
from jobq.stores.relational.rows import (
    CANCELLED,
    COMPLETED,
    ERRED,
    FAILED,
    FOREVER,
    GIVEN,
    LOCKING,
    NOTED,
    SCHEDULED,
    TTL,
    UNFOLLOWED,
    WANTED,
    WATCHED,
    Job,
    QueueRow,
)
from jobq.stores.relational.tx import Tx

# Continues after-complete schedules when their job has ended, by core.rules.cron.after_end.


def rearm(tx: Tx, qid: int, id: str) -> None:
    """Set the next time of a schedule whose job has ended, or which made no job.

    Does nothing if the schedule was dropped, or has a next time already.
    """
    row = tx.execute(tx.sql.schedules["schedule"], (qid, id)).fetchone()
    if row is None:
        return
    record = schedule_record(row)
    clock_ms = tx.now - tx.ahead  # schedules follow the machine's clock, not the store's time
    next_ms = cron.after_end(record, clock_ms) if record.next_ms is None else None
    if next_ms is not None:
        tx.execute(tx.sql.schedules["rearm"], (next_ms, qid, id))


def keep_until(
    settings: StoredSettings,
    state: int,
    now: int,
    *,
    result_ttl_ms: int | None = None,
    watched: bool = False,
) -> int:
    """The time until which the record of a job that ends now is kept."""
    ms = kept_ms(settings.retention, STATES[state], result_ttl_ms=result_ttl_ms, watched=watched)
    return FOREVER if ms is None else now + ms


def end(
    tx: Tx,
    queue: QueueRow,
    job: Job,
    state: int,
    *,
    failure: Failure | None = None,
    reason: str | None = None,
) -> None:
    """End a job: record it, free its lock, and collect the jobs and listeners that wait for it.

    Runs once per life of a job.
    """
    kind = {COMPLETED: Kind.COMPLETED, FAILED: Kind.FAILED, CANCELLED: Kind.CANCELLED}[state]
    options = unpack_options(job.options)
    job.finished_ms = tx.now
    job.reason = reason if state == CANCELLED else None
    if state == CANCELLED and job.actor is None:
        job.actor = options.actor  # who asked to cancel it while it was active
    job.keep = 1 if job.flags & (GIVEN | TTL) else 0
    watched = bool(job.flags & WATCHED)
    job.at_ms = keep_until(
        queue.settings, state, tx.now, result_ttl_ms=options.result_ttl_ms, watched=watched
    )
    tx.move(job, kind, state, reason=reason, failure=failure)
    if state == FAILED and queue.settings.dead_letters is not None:
        tx.failed.append((queue, job, tx.last_number(job.qid)))
    _follow(tx, queue, job)


def follow(tx: Tx, queue: QueueRow, job: Job) -> None:
    """Do what follows from the end of a job that a transaction of its handler has completed.

    That transaction changed only the job's own row. Runs once per such job.
    """
    assert job.finished_ms is not None
    job.flags &= ~UNFOLLOWED
    job.keep = 1 if job.flags & (GIVEN | TTL) else 0
    job.at_ms = keep_until(
        queue.settings,
        COMPLETED,
        job.finished_ms,
        result_ttl_ms=unpack_options(job.options).result_ttl_ms,
        watched=bool(job.flags & WATCHED),
    )
    tx.save(job)
    tx.left_active(job)
    _follow(tx, queue, job)


def _follow(tx: Tx, queue: QueueRow, job: Job) -> None:
    """Free the lock of an ended job, and collect the jobs and listeners that wait for it."""
    if job.flags & WATCHED:
        tx.ended.append((job.qid, job.id))
    if job.flags & LOCKING:
        locks.release(tx, job)
    if job.flags & WANTED:
        # flows.deliver tells its parents later. From here, a chain of flows would recurse.
        tx.wanted.append(job)
    if job.flags & SCHEDULED:
        schedule = unpack_options(job.options).schedule
        if schedule is not None:
            rearm(tx, job.qid, schedule)


def forget(tx: Tx, job: Job) -> None:
    """Delete the record of an ended job with everything that belongs to it."""
    if job.flags & UNFOLLOWED:
        follow(tx, tx.queue_by_qid(job.qid), job)
    if job.flags & NOTED:
        for part in ("delete_lines", "delete_signals", "delete_edges"):
            tx.execute(tx.sql.ties[part], (job.pk,))
    history.forget_steps(tx, job)
    if job.flags & ERRED:
        tx.execute(tx.sql.ties["delete_errors"], (job.pk,))
    tx.execute(tx.sql.ties["delete_job"], (job.pk,))
    tx.removed(job.qid, job.state)


def forget_plain(tx: Tx, qid: int, state: int, pks: list[int]) -> None:
    """The same for records to which nothing belongs."""
    tx.execute(tx.sql.ties["delete_jobs"], (tx.listed(pks),))
    tx.removed(qid, state, len(pks))
