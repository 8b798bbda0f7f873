"""What the steps of jobs have recorded. Each step has a row: parallel steps overwrite nothing."""

from __future__ import annotations

from jobq.core.records import Steps
from jobq.stores.relational.codes import NOTED, STEPPED
from jobq.stores.relational.rows import ClaimedJob, Job
from jobq.stores.relational.tx import Tx

FLAGS = NOTED | STEPPED
"""The flags of a job that has steps."""


def put(tx: Tx, pk: int, steps: Steps) -> None:
    """Store steps of a job. The caller sets FLAGS."""
    for name, data in steps:
        tx.execute(tx.sql.ties["put_step"], (pk, name, data))


def of(tx: Tx, job: ClaimedJob | Job) -> Steps:
    """The steps of a job, ordered by name."""
    if not job.flags & STEPPED:
        return ()
    return tuple(tx.execute(tx.sql.ties["steps_of"], (job.pk,)).fetchall())


def forget(tx: Tx, job: Job) -> None:
    """Delete the steps of a job. The caller saves or deletes the job."""
    if job.flags & STEPPED:
        tx.execute(tx.sql.ties["delete_steps"], (job.pk,))
        job.flags &= ~STEPPED
