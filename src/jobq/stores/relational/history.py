"""What runs of a job have left: its last failures, and what its steps have recorded."""

from __future__ import annotations

import msgspec

from jobq.core.records.failures import MAX_ERRORS
from jobq.core.records.jobs import Failure, Steps
from jobq.stores.relational.packed import pack_failure, unpack_failure
from jobq.stores.relational.rows import ERRED, NOTED, STEPPED, ClaimedJob, Job
from jobq.stores.relational.tx import Tx


def add_failed_run(tx: Tx, job: Job, failure: Failure) -> Failure:
    """Record a failed run of an active job, as its last failure and among its errors.

    The caller saves the job. Returns the failure with the attempt, worker and time that the store
    knows.
    """
    recorded = msgspec.structs.replace(
        failure, attempt=job.attempt, at_ms=tx.now, worker=job.worker
    )
    job.failure = pack_failure(recorded)
    tx.execute(tx.sql.ties["add_error"], (job.pk, job.attempt, job.failure))
    if job.flags & ERRED:  # not the first failed run: there may be too many now
        tx.execute(tx.sql.ties["trim_errors"], (job.pk, MAX_ERRORS))
    job.flags |= ERRED
    return recorded


def failed_runs_of(tx: Tx, job: Job) -> tuple[Failure, ...]:
    """The last failed runs of a job, oldest first."""
    if not job.flags & ERRED:
        return ()
    found = [unpack_failure(data) for (data,) in tx.execute(tx.sql.ties["errors_of"], (job.pk,))]
    return tuple(failure for failure in found if failure is not None)


# What the steps of jobs have recorded. Each step has a row: parallel steps overwrite nothing.

STEP_FLAGS = NOTED | STEPPED
"""The flags of a job that has steps."""


def put_steps(tx: Tx, pk: int, steps: Steps) -> None:
    """Store steps of a job. The caller sets STEP_FLAGS."""
    for name, data in steps:
        tx.execute(tx.sql.ties["put_step"], (pk, name, data))


def steps_of(tx: Tx, job: ClaimedJob | Job) -> Steps:
    """The steps of a job, ordered by name."""
    if not job.flags & STEPPED:
        return ()
    return tuple(tx.execute(tx.sql.ties["steps_of"], (job.pk,)).fetchall())


def forget_steps(tx: Tx, job: Job) -> None:
    """Delete the steps of a job. The caller saves or deletes the job."""
    if job.flags & STEPPED:
        tx.execute(tx.sql.ties["delete_steps"], (job.pk,))
        job.flags &= ~STEPPED
