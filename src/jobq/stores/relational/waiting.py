"""Puts a job into its queue: now or later, at the back or at its old position, or postponed."""

from __future__ import annotations

from jobq.core.records.jobs import Defer, Failure
from jobq.core.records.states import Kind
from jobq.core.rules import deferral, outcomes
from jobq.core.rules.deferral import PutOff
from jobq.core.rules.outcomes import QueueEnd
from jobq.stores.relational import holds
from jobq.stores.relational.packed import unpack_options, with_store_fields
from jobq.stores.relational.rows import BLOCKED, DELAYED, WAITING, Job, QueueRow
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


# Postpones jobs that the worker that claimed them cannot run. The rules are `core.rules.deferral`.


def defer(tx: Tx, queue: QueueRow, job: Job, outcome: Defer) -> None:
    """Postpone the job; in a keyed queue, hold its key."""
    reason, options = outcome.reason, unpack_options(job.options)
    job.options = with_store_fields(
        job.options,
        put_off=(options.put_off or PutOff()).again(reason, now_ms=tx.now, due_ms=job.due_ms),
        deferred=deferral.deferred(
            options.deferred, reason, outcome.text, attempt=job.attempt, now_ms=tx.now
        ),
    )
    if job.starts == 0:
        job.started_ms = None
    job_ms, key_ms = deferral.waits(queue.mode, outcome.delay_ms)
    effect = outcomes.effect("defer", delay_ms=job_ms)
    if key_ms:
        holds.put(tx, queue, key_ms, job.key)
        wait(tx, job, effect.kind, "front", reason=reason)
    else:
        later(tx, job, effect.kind, tx.now + job_ms, reason=reason)


def new_arguments(job: Job) -> None:
    """Forget that the former arguments of a job did not fit."""
    if unpack_options(job.options).deferred is not None:
        job.options = with_store_fields(job.options, deferred=None)


def due_again(job: Job) -> None:
    """Let the ttl of a job that was rescheduled count from its new time."""
    put_off = unpack_options(job.options).put_off
    if put_off is not None:
        job.options = with_store_fields(job.options, put_off=put_off._replace(due_ms=0))
