"""A job whose next stall would fail it runs alone, so that if it kills the worker it takes no other job along.

The worker claims nothing from the moment such a job arrives. Leases that exchanges in flight still bring are released.

If the worker runs other jobs, the job itself is released too: one of them may kill the worker, and a job that is waiting in its
hands would fail by that without having run. The worker waits until its other runs have ended, for one lease at most, and then
claims the job again, first of all. It starts when everything is settled, or after that lease beside the runs that are left.
When it has ended, or after `last_chance_ms`, the worker claims as usual.
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
        self.first: Runner | None = (
            None  # only this runner's fetcher claims: the job that was released may be there
        )
        self._run: Run | None = None  # the job that closed it and is to run alone
        self._beside = False  # the worker has waited for a lease: the job starts whatever else runs
        self._alone: asyncio.Future[None] | None = None  # while the job waits for that
        self._timer: asyncio.TimerHandle | None = None

    def join(self, runner: Runner, bell: Bell) -> None:
        """A station takes part: `bell` wakes its fetcher."""
        self._members.append((runner, bell))

    def concerns(self, run: Run, handler: Handler) -> bool:
        """Whether the run must be alone. A job in a process of its own cannot kill the worker."""
        return run.lease.last_chance and handler.executor not in _ISOLATED

    def bars(self, runner: Runner) -> bool:
        """Whether this runner's fetcher may claim nothing now."""
        return self.closed or (self.first is not None and self.first is not runner)

    def close(self, run: Run) -> bool:
        """From now on nothing is claimed, what arrives is released, and batches that gather begin with what they have.

        False if other jobs run: this one is to be released, and comes back when they have ended."""
        self.closed, self.first = True, None
        crowded = not self._beside and self._others_run(run)
        self._stop_timer()
        if crowded:
            log.info(
                "%s has stalled %d times and is released until other jobs have ended",
                run,
                run.lease.stalls,
            )
            self.first = run.runner
            self._timer = asyncio.get_running_loop().call_later(self._lease_s, self._tired)
        else:
            log.info(
                "%s has stalled %d times and runs alone: its next stall fails it",
                run,
                run.lease.stalls,
            )
            self._run = run
        for runner, bell in self._members:
            runner.releasing = True
            runner.batches.flush()
            bell.ring()
        return not crowded

    async def turn(self) -> None:
        """Return when the job may start: nothing else runs or waits to be settled, or one lease has passed."""
        if not self._is_alone():
            if not self._beside:
                self._alone = asyncio.get_running_loop().create_future()
                try:
                    await asyncio.wait([self._alone], timeout=self._lease_s)
                finally:
                    self._alone = None
            if not self._is_alone():
                log.warning(
                    "%s starts beside others: they did not end within a lease (%g s)",
                    self._run,
                    self._lease_s,
                )
        self._beside = False
        self._timer = asyncio.get_running_loop().call_later(self._most_s, self._open)

    def look(self) -> None:
        """Something has ended or was settled: the job may be alone now. Fetchers call this in each pass."""
        if self._run is None:
            if self._is_empty():
                self._call_back()
        elif self._alone is not None and not self._alone.done() and self._is_alone():
            self._alone.set_result(None)

    def asked(self, runner: Runner) -> None:
        """This runner's fetcher has claimed. If that did not bring the job, another worker has it: all claim again."""
        if self.first is runner and not self.closed:
            self._open()

    def leave(self, run: Run) -> None:
        """The job has ended, or will not start: claim again, unless that was allowed before."""
        if self._run is run:
            self._open()

    def waiting_in(self, runner: Runner) -> Run | None:
        """The job that waits for its turn, if it is one of this runner."""
        waits = self._alone is not None and self._run is not None and self._run.runner is runner
        return self._run if waits else None

    def _others_run(self, run: Run) -> bool:
        return any(
            not other.concluded and other is not run
            for runner, _ in self._members
            for other in runner.held
        )

    def _is_empty(self) -> bool:
        return self._slots.free == self._slots.total and not any(
            runner.held for runner, _ in self._members
        )

    def _tired(self) -> None:
        self._beside = True
        self._call_back()

    def _call_back(self) -> None:
        """The fetcher that has released the job claims before all others. A store that does not answer keeps them waiting for
        no longer than a lease."""
        self._stop_timer()
        self.closed = False
        self._timer = asyncio.get_running_loop().call_later(self._lease_s, self._open)
        for runner, bell in self._members:
            if runner is self.first:
                runner.releasing = runner.refusing
                bell.ring()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _is_alone(self) -> bool:
        """No slot but one is taken, by a run or by a claim in flight, and no lease but one is held."""
        return (
            self._slots.free >= self._slots.total - 1
            and sum(len(runner.held) for runner, _ in self._members) <= 1
        )

    def _open(self) -> None:
        self._stop_timer()
        self.closed = self._beside = False
        self.first = self._run = None
        for runner, bell in self._members:
            runner.releasing = runner.refusing
            bell.ring()
