"""Failed runs: the last ones of each job, in a table of their own, so that no claim reads them."""

from __future__ import annotations

import msgspec

from jobq.core.failures import MAX_ERRORS
from jobq.core.records import Failure
from jobq.stores.sqlite.codes import ERRED
from jobq.stores.sqlite.options import pack_failure, unpack_failure
from jobq.stores.sqlite.queries import load
from jobq.stores.sqlite.rows import Job
from jobq.stores.sqlite.tx import Tx

TIES = load("ties.sql")


def add(tx: Tx, job: Job, failure: Failure) -> Failure:
    """Record a failed run of an active job, as its last failure and among its errors; the caller
    saves the job.

    Returns the failure with the attempt and the worker that the store knows, at the store's time.
    """
    told = msgspec.structs.replace(failure, attempt=job.attempt, at_ms=tx.now, worker=job.worker)
    job.failure = pack_failure(told)
    tx.execute(TIES["add_error"], (job.pk, job.attempt, job.failure))
    if job.flags & ERRED:  # the first one needs no trimming
        tx.execute(TIES["trim_errors"], (job.pk, MAX_ERRORS))
    job.flags |= ERRED
    return told


def of(tx: Tx, job: Job) -> tuple[Failure, ...]:
    """The last failed runs of a job, oldest first."""
    if not job.flags & ERRED:
        return ()
    found = [unpack_failure(data) for (data,) in tx.execute(TIES["errors_of"], (job.pk,))]
    return tuple(failure for failure in found if failure is not None)
