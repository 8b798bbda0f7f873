"""What `Worker.stop()` returns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from jobq.api.info import JobRef
from jobq.core.records import Complete, Fail, Release, RetryLater
from jobq.engine.run import Run


class Stopped(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the jobs that a worker held when it was asked to stop."""

    completed: tuple[JobRef, ...] = ()
    failed: tuple[JobRef, ...] = ()  # for good, or to be retried
    released: tuple[
        JobRef, ...
    ] = ()  # unfinished: another worker runs them, at no cost to their retries
    left: tuple[
        JobRef, ...
    ] = ()  # the store did not answer: another worker runs them when their leases have expired


_KINDS: dict[type, str] = {
    Complete: "completed",
    Fail: "failed",
    RetryLater: "failed",
    Release: "released",
}


def stopped(parting: Iterable[tuple[Sequence[Run], Iterable[Run]]]) -> Stopped:
    """The summary, from the runs that each store has settled since the stop began and those it has not."""
    found: dict[str, list[JobRef]] = {"completed": [], "failed": [], "released": [], "left": []}
    for settled, left in parting:
        for run in settled:  # those that a store refused have no outcome; those that wait or snooze are none of the kinds
            if (kind := _KINDS.get(type(run.outcome))) is not None:
                found[kind].append(_job(run))
        found["left"] += [_job(run) for run in left]
    return Stopped(**{kind: tuple(jobs) for kind, jobs in found.items()})


def _job(run: Run) -> JobRef:
    return JobRef(queue=run.lease.queue.queue, id=run.lease.id)
