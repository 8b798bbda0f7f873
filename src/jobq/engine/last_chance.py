"""A job whose next stall would fail it runs alone, so that if it kills the worker it takes no other job along.

The worker claims nothing from the moment such a job arrives. Leases that exchanges in flight still bring are released. The job
waits, for one lease at most, until the worker's other runs have ended and everything is settled, and then starts. When it has
ended, or after `last_chance_ms`, the worker claims again.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from jobq.engine.handler import Handler
from jobq.engine.run import Run
from jobq.engine.settings import Settings
from jobq.engine.slots import Bell, Slots

if TYPE_CHECKING:
    from jobq.engine.runner import Runner

log = logging.getLogger("jobq")

_ISOLATED = ("process", "command")
"""Executors whose jobs die without their worker."""


class LastChance:
    """One per worker, shared by its stations: at most one job at a time waits here or runs alone."""

    def __init__(self, slots: Slots, settings: Settings) -> None:
        self.closed = False  # nothing is claimed
        self._slots = slots
        self._lease_s = settings.lease_ms / 1000
        self._most_s = settings.last_chance_ms / 1000
        self._members: list[tuple[Runner, Bell]] = []
        self._run: Run | None = None  # the job that closed it
        self._alone: asyncio.Future[None] | None = None  # while the job waits for that
        self._timer: asyncio.TimerHandle | None = None

    def join(self, runner: Runner, bell: Bell) -> None:
        """A station takes part: `bell` wakes its fetcher."""
        self._members.append((runner, bell))

    def concerns(self, run: Run, handler: Handler) -> bool:
        """Whether the run must be alone. A job in a process of its own cannot kill the worker."""
        return run.lease.last_chance and handler.executor not in _ISOLATED

    def close(self, run: Run) -> None:
        """From now on nothing is claimed, what arrives is released, and batches that gather begin with what they have."""
        self.closed, self._run = True, run
        log.info("%s has stalled %d times and runs alone: its next stall fails it", run, run.lease.stalls)
        for runner, bell in self._members:
            runner.releasing = True
            runner.batches.flush()
            bell.ring()

    async def turn(self) -> None:
        """Return when the job may start: nothing else runs or waits to be settled, or one lease has passed."""
        if not self._is_alone():
            self._alone = asyncio.get_running_loop().create_future()
            try:
                await asyncio.wait([self._alone], timeout=self._lease_s)
            finally:
                self._alone = None
            if not self._is_alone():
                log.warning("%s starts beside others: they did not end within a lease (%g s)", self._run, self._lease_s)
        self._timer = asyncio.get_running_loop().call_later(self._most_s, self._open)

    def look(self) -> None:
        """Something has ended or was settled: the job may be alone now. Fetchers call this in each pass."""
        if self._alone is not None and not self._alone.done() and self._is_alone():
            self._alone.set_result(None)

    def leave(self, run: Run) -> None:
        """The job has ended, or will not start: claim again, unless that was allowed before."""
        if self._run is run:
            self._open()

    def waiting_in(self, runner: Runner) -> Run | None:
        """The job that waits for its turn, if it is one of this runner."""
        waits = self._alone is not None and self._run is not None and self._run.runner is runner
        return self._run if waits else None

    def _is_alone(self) -> bool:
        """No slot but one is taken, by a run or by a claim in flight, and no lease but one is held."""
        return self._slots.free >= self._slots.total - 1 and sum(len(runner.held) for runner, _ in self._members) <= 1

    def _open(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.closed, self._run = False, None
        for runner, bell in self._members:
            runner.releasing = runner.refusing
            bell.ring()
