"""The last failed runs of each job. They have a table of their own, so that claims do not read
them.
"""

from __future__ import annotations

import msgspec

from jobq.core.failures import MAX_ERRORS
from jobq.core.records import Failure
from jobq.stores.relational.codes import ERRED
from jobq.stores.relational.options import pack_failure, unpack_failure
from jobq.stores.relational.rows import Job
from jobq.stores.relational.tx import Tx


def add(tx: Tx, job: Job, failure: Failure) -> Failure:
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


def of(tx: Tx, job: Job) -> tuple[Failure, ...]:
    """The last failed runs of a job, oldest first."""
    if not job.flags & ERRED:
        return ()
    found = [unpack_failure(data) for (data,) in tx.execute(tx.sql.ties["errors_of"], (job.pk,))]
    return tuple(failure for failure in found if failure is not None)
