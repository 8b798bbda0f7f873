"""Stopped: what `Worker.stop()` returns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from jobq.api.info import JobRef
from jobq.core.records import Complete, Fail, Release, RetryLater
from jobq.engine.run import Run


class Stopped(msgspec.Struct, frozen=True, kw_only=True):
    """What happened to the jobs that a worker was running when it was asked to stop."""

    completed: tuple[JobRef, ...] = ()
    failed: tuple[JobRef, ...] = ()  # for good, or to be retried
    # Unfinished. Another worker runs them, and this does not count as a failure.
    released: tuple[JobRef, ...] = ()
    # The store was unavailable. Another worker runs them when their leases have expired.
    left: tuple[JobRef, ...] = ()


_KINDS: dict[type, str] = {
    Complete: "completed",
    Fail: "failed",
    RetryLater: "failed",
    Release: "released",
}


def stopped(parting: Iterable[tuple[Sequence[Run], Iterable[Run]]]) -> Stopped:
    """Sum up, for each store, the runs it settled since the stop began and the runs it did not."""
    found: dict[str, list[JobRef]] = {"completed": [], "failed": [], "released": [], "left": []}
    for settled, left in parting:
        for run in settled:
            # A run that the store refused has no outcome. One that snoozed or waits is not counted.
            if (kind := _KINDS.get(type(run.outcome))) is not None:
                found[kind].append(_job(run))
        found["left"] += [_job(run) for run in left]
    return Stopped(**{kind: tuple(jobs) for kind, jobs in found.items()})


def _job(run: Run) -> JobRef:
    return JobRef(queue=run.lease.queue.queue, id=run.lease.id)
