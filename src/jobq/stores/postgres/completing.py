"""complete_in: a job is completed by the transaction of its handler.

The transaction changes only the job's own row and appends its event, because it may stay open for
long: others would wait for anything else. What follows from the end of the job (its key, its unique
lock, its parents, its schedule, those who wait for the result) is done after the commit, when the
worker settles the lease. If the worker has died, a tick does it.
"""

from __future__ import annotations

from jobq.core.defaults import HOUR_MS
from jobq.core.records import LeaseRef
from jobq.core.states import Kind
from jobq.errors import InvalidJob, LeaseLost
from jobq.stores.base import Completion
from jobq.stores.postgres.queries import SQL
from jobq.stores.postgres.tx import PostgresTx
from jobq.stores.relational import ending
from jobq.stores.relational.codes import ACTIVE, CANCEL, COMMITTED, COMPLETED, UNFOLLOWED
from jobq.stores.relational.rows import Job, read, read_all
from jobq.stores.relational.tokens import job_number

FOLLOW_MS = 10_000
"""Milliseconds after which a tick does what follows from a job's end. The worker does it within
milliseconds of the commit, unless it has died."""
FOLLOWED = 100
"""Such jobs per tick: each may lock other rows, which a short transaction holds for less long."""


def complete(tx: PostgresTx, lease: LeaseRef, result: bytes | None) -> None:
    """Complete the job of a lease in a transaction of its handler. LeaseLost if it is not held.

    InvalidJob if this lease has completed it already. After a rollback, it has not."""
    pk = job_number(lease.token)
    tx.execute(SQL.hot["begin_completing"], (pk,))  # commands and settles then skip the job
    row = tx.execute(SQL.hot["lock_job"], (pk,)).fetchone()
    job = None if row is None else read(row, Job)
    held = job is not None and (job.id, job.token) == (lease.id, lease.token)
    if job is not None and held and job.state == COMPLETED:
        raise InvalidJob(f"complete_in: job {lease.id} was completed before")
    if job is None or not held or job.state != ACTIVE:
        raise LeaseLost(
            f"job {lease.id} was not completed: its lease is lost, so another worker may run it; "
            "roll back the transaction"
        )
    tx.not_before(job.started_ms or 0)
    queue = tx.queue_by_qid(job.qid)
    job.flags = job.flags & ~CANCEL | COMMITTED | UNFOLLOWED
    job.result, job.finished_ms = result, tx.now
    # Its record is not removed before what follows is done, even if results are not kept.
    job.keep = 1
    until = ending.keep_until(queue.settings, COMPLETED, tx.now)
    job.at_ms = max(until, tx.now + HOUR_MS)
    tx.move(job, Kind.COMPLETED, COMPLETED)


def completion(tx: PostgresTx, lease: LeaseRef) -> Completion:
    """Implements `Transactional.completion`."""
    pk = job_number(lease.token)
    found = tx.execute(SQL.hot["state_of_lease"], (pk, lease.id, lease.token)).fetchone()
    if found is None:
        return "lost"
    if found[0] != ACTIVE:
        return "completed" if found[0] == COMPLETED else "lost"
    if tx.execute(SQL.hot["unlocked"], (pk,)).fetchone() is None:
        return "open"
    # The row is locked here now: what it says is final.
    found = tx.execute(SQL.hot["state_of_lease"], (pk, lease.id, lease.token)).fetchone()
    if found is None:
        return "lost"
    return "active" if found[0] == ACTIVE else "completed"


def follow_up(tx: PostgresTx) -> int:
    """Do what follows from the ends of jobs whose workers have died. Returns how many there were.

    The caller is a tick."""
    rows = tx.execute(SQL.upkeep["unfollowed"], (tx.now - FOLLOW_MS, FOLLOWED)).fetchall()
    for job in read_all(rows, Job):
        ending.follow(tx, tx.queue_by_qid(job.qid), job)
    return len(rows)
