"""Jobs that were pushed to workers and that no worker has confirmed. Pure.

A push may be lost with its stream. The worker has not started such a job, so its return must count
neither as a failure nor as a stall. The server releases it in two cases:

- The worker opens a stream again and does not name the job.
- The lease of the job is about to end, and the worker was not heard of since the push.

The server never releases a job because its stream broke: the worker may be running the job, and
its confirmation may be lost.

Times are seconds of a monotonic clock, which the caller passes in.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from jobq.core.records import LeaseRef

MARGIN_S = 1.0
"""Seconds before the end of a lease in which the server releases it. Enough for one slow call."""


class Worker(NamedTuple):
    """A worker as the server knows it: two tenants may use one name."""

    tenant: str
    name: str


class Pushed:
    """Which jobs of which workers are not confirmed."""

    def __init__(self) -> None:
        self._open: dict[Worker, dict[LeaseRef, float]] = {}

    def push(
        self, worker: Worker, leases: Iterable[LeaseRef], *, now: float, lease_s: float
    ) -> None:
        """Record jobs that are about to be pushed under leases of `lease_s`."""
        due = now + lease_s - min(MARGIN_S, lease_s / 4)
        self._open.setdefault(worker, {}).update(dict.fromkeys(leases, due))

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

    def due(self, now: float) -> dict[Worker, list[LeaseRef]]:
        """Take the jobs whose leases are about to end."""
        found: dict[Worker, list[LeaseRef]] = {}
        for worker, known in list(self._open.items()):
            late = [lease for lease, due in known.items() if due <= now]
            if late:
                found[worker] = late
                self.confirm(worker, late)
        return found

    def next_due(self) -> float | None:
        """When the first lease is about to end. None: all jobs are confirmed."""
        return min((due for known in self._open.values() for due in known.values()), default=None)

    def count(self, worker: Worker) -> int:
        """How many jobs of the worker are not confirmed."""
        return len(self._open.get(worker, ()))
