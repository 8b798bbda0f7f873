"""How many jobs the server may claim for a job stream now, and whether that claim is alone. Pure.

A worker grants credits: each is a free slot. The server claims at most as many jobs as the worker
has granted, and a pushed job uses one credit until the worker grants it again, when the job has
ended. So the server also knows how many jobs the worker runs.

A job on its last chance (core/stalls.py) is pushed alone, as the stream's whole credit:

- If the store reports that such a job is next, the stream claims nothing until the worker runs
  nothing, for one lease at most. Then it claims alone.
- While the job runs, the stream claims nothing, for `LAST_CHANCE_S` at most. The credits that the
  worker grants meanwhile are kept.

Times are seconds of a monotonic clock, which the caller passes in.
"""

from __future__ import annotations

from typing import NamedTuple

LAST_CHANCE_S = 60.0
"""Seconds without claims while a job on its last chance runs. A worker of jobq waits as long."""
MAX_CREDITS = 100_000
"""Credits of one stream, as many as a worker may run jobs at once (core/workers.py)."""


class Allowance(NamedTuple):
    """What the next claim may ask for."""

    limit: int
    alone: bool


class Credits:
    """The credits of one job stream."""

    def __init__(self, *, lease_s: float, running: int = 0) -> None:
        """`running` is how many jobs the worker ran when it opened the stream."""
        self.free = 0
        """Credits that no job uses."""
        self.running = running
        """Jobs that the worker has not ended, as far as its grants tell."""
        self._lease_s = lease_s
        self._wait_until: float | None = None  # a job on its last chance is next
        self._alone_until: float | None = None  # a job on its last chance runs

    def open_with(self, credits: int) -> None:
        """Take the credits of the first message: free slots, beside the jobs that already run."""
        self.free = min(MAX_CREDITS, max(0, credits))

    def grant(self, credits: int) -> None:
        """The worker has freed this many slots."""
        self.free = min(MAX_CREDITS, self.free + max(0, credits))
        self.running = max(0, self.running - max(0, credits))
        if self.running == 0:
            self._alone_until = None

    def allowance(self, now: float) -> Allowance | None:
        """What the stream may claim now. None: nothing."""
        if self.free == 0:
            return None
        if self._alone_until is not None and now < self._alone_until:
            return None
        if self._wait_until is not None:
            if self.running and now < self._wait_until:
                return None
            return Allowance(self.free, alone=True)
        return Allowance(self.free, alone=self.running == 0)

    def claimed(self, jobs: int, now: float, *, last_chance: bool, next_is: bool) -> None:
        """Record the reply to a claim.

        `last_chance`: the job that was claimed is on its last chance. `next_is`: the store has
        such a job for a claim that is alone.
        """
        self.free = max(0, self.free - jobs)
        self.running += jobs
        if last_chance:
            self._wait_until, self._alone_until = None, now + LAST_CHANCE_S
        elif next_is and self._wait_until is None:
            self._wait_until = now + self._lease_s
        else:
            self._wait_until = None  # another worker has the job, or this claim was its turn

    def changes_at(self) -> float | None:
        """When `allowance` may change although nothing is granted. None: never."""
        if self.free == 0:
            return None
        times = [time for time in (self._wait_until, self._alone_until) if time is not None]
        return min(times, default=None)
