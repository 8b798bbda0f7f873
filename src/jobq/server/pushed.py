"""Jobs that were pushed to workers and that no worker has confirmed. Pure.

A push may be lost with its stream. The worker has not started such a job, so its return must count
neither as a failure nor as a stall. The server releases it in two cases:

- The worker opens a stream again and does not name the job.
- The lease of the job is about to end, and the worker was not heard of since the push, or it was
  heard of here and did not name the job.

The server never releases a job because its stream broke: the worker may be running the job, and
its confirmation may be lost. It may also send its heartbeats to another replica, which then renews
the lease.

Times are seconds of a monotonic clock, which the caller passes in.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from jobq.core.records.jobs import LeaseRef

MARGIN_S = 1.0
"""Seconds before the end of a lease in which the server releases it. Enough for one slow call."""


class Worker(NamedTuple):
    """A worker as the server knows it: two tenants may use one name."""

    tenant: str
    name: str


class Push(NamedTuple):
    """A job that was pushed under a lease."""

    lease: LeaseRef
    incarnation: str  # of the worker
    started_ms: int  # the store's time of the claim
    at: float
    due: float


class Pushed:
    """Which jobs of which workers are not confirmed."""

    def __init__(self) -> None:
        self._open: dict[Worker, dict[LeaseRef, Push]] = {}

    def push(
        self,
        worker: Worker,
        leases: Iterable[tuple[LeaseRef, int]],
        *,
        incarnation: str,
        now: float,
        lease_s: float,
    ) -> None:
        """Record jobs that are about to be pushed: leases of `lease_s`, and when they began."""
        due = now + lease_s - min(MARGIN_S, lease_s / 4)
        known = self._open.setdefault(worker, {})
        for lease, started_ms in leases:
            known[lease] = Push(lease, incarnation, started_ms, now, due)

    def confirm(self, worker: Worker, leases: Iterable[LeaseRef]) -> None:
        """The worker has these jobs, or they have ended."""
        known = self._open.get(worker)
        if known is None:
            return
        for lease in leases:
            known.pop(lease, None)
        if not known:
            del self._open[worker]

    def reconnect(self, worker: Worker, named: Collection[LeaseRef]) -> list[LeaseRef]:
        """The worker has opened a stream and named its jobs. Returns the jobs to release."""
        known = self._open.pop(worker, {})
        return [lease for lease in known if lease not in named]

    def leave(self, worker: Worker, incarnation: str) -> list[LeaseRef]:
        """This process of the worker has left. Another one may have its name and its own jobs."""
        known = self._open.get(worker, {}).values()
        left = [push.lease for push in known if push.incarnation == incarnation]
        self.confirm(worker, left)
        return left

    def due(self, now: float) -> dict[Worker, list[Push]]:
        """Take the jobs whose leases are about to end."""
        found: dict[Worker, list[Push]] = {}
        for worker, known in list(self._open.items()):
            late = [push for push in known.values() if push.due <= now]
            if late:
                found[worker] = late
                self.confirm(worker, [push.lease for push in late])
        return found

    def next_due(self) -> float | None:
        """When the first lease is about to end. None: all jobs are confirmed."""
        return min(
            (push.due for known in self._open.values() for push in known.values()), default=None
        )

    def count(self, worker: Worker) -> int:
        """How many jobs of the worker are not confirmed."""
        return len(self._open.get(worker, ()))


def is_unheard(
    push: Push, *, heard_here: float | None, seen_ms: int | None, lease_s: float
) -> bool:
    """Whether a job that nobody confirmed can be released: no worker runs it.

    `heard_here` is the time of the worker's last heartbeat at this server, which did not name the
    job. A heartbeat that comes soon after the push may have been sent before it. `seen_ms` is when
    any server last heard of the worker, in the store's time; None: the worker is gone.
    """
    if heard_here is not None and heard_here > push.at + lease_s / 3:
        return True
    return seen_ms is None or seen_ms <= push.started_ms
