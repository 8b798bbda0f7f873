"""Puts a job into its queue: now or at a later time, at the back or at its old place."""

from __future__ import annotations

from jobq.core import outcomes
from jobq.core.outcomes import QueueEnd
from jobq.core.records import Failure
from jobq.core.states import Kind
from jobq.stores.relational.codes import BLOCKED, DELAYED, WAITING
from jobq.stores.relational.options import unpack_options
from jobq.stores.relational.rows import Job
from jobq.stores.relational.tx import Tx


def ttl_end(job: Job, due_ms: int) -> int | None:
    """The time until which a job that has never started must start; None: no limit."""
    if job.options is None:
        return None
    options = unpack_options(job.options)
    if options.put_off is not None:
        due_ms = options.put_off.due_ms or due_ms
    return outcomes.ttl_end(options.ttl_ms, due_ms=due_ms, attempt=job.starts)


def wait(
    tx: Tx,
    job: Job,
    kind: Kind,
    queue_end: QueueEnd,
    *,
    reason: str | None = None,
    failure: Failure | None = None,
) -> None:
    """Make a job wait from now on.

    A delayed job counts as due since its time came, any other job since now.
    """
    if queue_end == "front":
        job.seq = tx.front(job)
    else:
        number = tx.take_seqs(job.qid)
        job.seq = -number if queue_end == "first" else number
    if job.state != DELAYED or job.due_ms is None:
        job.due_ms = tx.now
    job.at_ms = ttl_end(job, job.due_ms)
    tx.move(job, kind, WAITING, reason=reason, failure=failure)


def when_due(
    tx: Tx, job: Job, kind: Kind, *, reason: str | None = None, failure: Failure | None = None
) -> None:
    """The same for a job that nothing holds back any more, at the place that core's rule gives."""
    lifo = job.options is not None and unpack_options(job.options).lifo
    queue_end = outcomes.queue_end_when_due(
        tx.queue_by_qid(job.qid).mode, started=job.started_ms is not None, lifo=lifo
    )
    wait(tx, job, kind, queue_end, reason=reason, failure=failure)


def later(
    tx: Tx,
    job: Job,
    kind: Kind,
    due_ms: int,
    *,
    reason: str | None = None,
    failure: Failure | None = None,
) -> None:
    """Delay a job until a time."""
    job.due_ms = job.at_ms = due_ms
    tx.move(job, kind, DELAYED, reason=reason, failure=failure)


def unblock(tx: Tx, job: Job, *, reason: str | None = None) -> None:
    """Release a blocked job that nothing holds back. It is due now, or its delay begins."""
    assert job.state == BLOCKED
    options = unpack_options(job.options)
    due = tx.now
    if job.attempt == 0:
        due = outcomes.due_ms(
            now_ms=tx.now, delay_ms=options.delay_ms, at_ms=options.at_ms, ahead_ms=tx.ahead
        )
    if due > tx.now:
        later(tx, job, Kind.UNBLOCKED, due, reason=reason)
    else:
        when_due(tx, job, Kind.UNBLOCKED, reason=reason)
