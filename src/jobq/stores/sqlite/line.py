"""How a job comes to stand in line: due now or later, at the back or where it stood."""

from __future__ import annotations

from jobq.core.states import Kind
from jobq.stores.sqlite.rows import BLOCKED, DELAYED, WAITING, Job, unpack_options
from jobq.stores.sqlite.tx import Tx


def ttl_end(job: Job, due_ms: int) -> int | None:
    """Until when a job that has not started must start; it counts from due to the first start."""
    if job.options is None or job.attempt > 0:
        return None
    ttl = unpack_options(job.options).ttl_ms
    return None if ttl is None else due_ms + ttl


def to_back(tx: Tx, job: Job, kind: Kind, *, reason: str | None = None) -> None:
    """Waiting from now on, behind the jobs of its priority (in front of them, if it is lifo).

    A job that has started in this life goes to the back of a plain queue also if it is lifo, and keeps its place in its key."""
    if job.started_ms is None:
        place = tx.places(job.qid)
        job.seq = -place if job.options is not None and unpack_options(job.options).lifo else place
    elif job.key is None:
        job.seq = tx.places(job.qid)
    job.due_ms = tx.now if job.state != DELAYED else job.due_ms
    job.at_ms = ttl_end(job, job.due_ms or tx.now)
    tx.move(job, kind, WAITING, reason=reason)


def to_front(tx: Tx, job: Job, kind: Kind, *, reason: str | None = None) -> None:
    """Waiting again where it stood: those that came back keep their order, before those that came later."""
    job.due_ms = tx.now
    job.at_ms = ttl_end(job, tx.now)
    tx.move(job, kind, WAITING, reason=reason)


def later(tx: Tx, job: Job, kind: Kind, due_ms: int, *, reason: str | None = None) -> None:
    """Delayed until a time."""
    job.due_ms = job.at_ms = due_ms
    tx.move(job, kind, DELAYED, reason=reason)


def unblock(tx: Tx, job: Job, *, reason: str | None = None) -> None:
    """Nothing holds a blocked job any more: it is due now, or its delay begins."""
    assert job.state == BLOCKED
    options = unpack_options(job.options)
    due = tx.now
    if job.attempt == 0:
        due = tx.now + options.delay_ms if options.at_ms is None else options.at_ms
    if due > tx.now:
        later(tx, job, Kind.UNBLOCKED, due, reason=reason)
    else:
        to_back(tx, job, Kind.UNBLOCKED, reason=reason)
