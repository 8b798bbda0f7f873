"""Postpones jobs that the worker that claimed them cannot run. The rules are `core.unknown`."""

from __future__ import annotations

from jobq.core import outcomes, unknown
from jobq.core.records import Defer
from jobq.core.unknown import PutOff
from jobq.stores.relational import holds, waiting
from jobq.stores.relational.options import unpack_options, with_store_fields
from jobq.stores.relational.rows import Job, QueueRow
from jobq.stores.relational.tx import Tx


def defer(tx: Tx, queue: QueueRow, job: Job, outcome: Defer) -> None:
    """Postpone the job; in a keyed queue, hold its key."""
    reason, options = outcome.reason, unpack_options(job.options)
    job.options = with_store_fields(
        job.options,
        put_off=(options.put_off or PutOff()).again(reason, now_ms=tx.now, due_ms=job.due_ms),
        deferred=unknown.deferred(
            options.deferred, reason, outcome.text, attempt=job.attempt, now_ms=tx.now
        ),
    )
    if job.starts == 0:
        job.started_ms = None
    job_ms, key_ms = unknown.waits(queue.mode, outcome.delay_ms)
    effect = outcomes.effect("defer", delay_ms=job_ms)
    if key_ms:
        holds.put(tx, queue, key_ms, job.key)
        waiting.wait(tx, job, effect.kind, "front", reason=reason)
    else:
        waiting.later(tx, job, effect.kind, tx.now + job_ms, reason=reason)


def new_arguments(job: Job) -> None:
    """Forget that the former arguments of a job did not fit."""
    if unpack_options(job.options).deferred is not None:
        job.options = with_store_fields(job.options, deferred=None)


def due_again(job: Job) -> None:
    """Let the ttl of a job that was rescheduled count from its new time."""
    put_off = unpack_options(job.options).put_off
    if put_off is not None:
        job.options = with_store_fields(job.options, put_off=put_off._replace(due_ms=0))
