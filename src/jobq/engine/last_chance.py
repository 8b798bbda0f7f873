"""Runs a job alone if its next stall would fail it.

A job that kills its worker then ends no other job. And a healthy job on its last chance does not
fail because of a neighbour: if a neighbour killed the worker, both jobs would stall.

A store gives such a job only to a claim that is `alone`: the worker runs nothing else and has no
other claim under way. The worker is in one of these states:

open      All stations claim. If a store reports that such a job is next (`Settled.last_chance`),
          the worker waits. If an idle worker with one store gets the job at once, it runs it.
waiting   No station claims, until all runs have ended, or for one lease. Then one station claims.
claiming  Only the station that found the job claims, once. If it gets the job, the job runs. If
          not, another worker has the job, and the state is open again.
running   The job has arrived. No station claims until it has ended, or for `last_chance_ms`, and
          leases that still arrive are released. When the job has ended, its station claims first:
          that exchange also settles the job, and no other job may start before it is settled.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from jobq.core.records.jobs import Claim
from jobq.engine.handler import Handler
from jobq.engine.identity import WorkerSettings
from jobq.engine.run import Run
from jobq.engine.slots import Bell, Slots

if TYPE_CHECKING:
    from jobq.engine.runner import Runner

log = logging.getLogger("jobq")

_ISOLATED = ("process", "command")
"""Executors that run a job in a separate process: it can die without its worker."""


def is_isolated(handler: Handler) -> bool:
    """Return whether jobs of this task cannot kill their worker."""
    return handler.executor in _ISOLATED


class LastChance:
    """Decides when the stations of a worker may claim. There is one for each worker."""

    def __init__(self, slots: Slots, settings: WorkerSettings) -> None:
        self.closed = False  # no station may claim
        self._slots = slots
        self._lease_s = settings.lease_ms / 1000
        self._max_s = settings.last_chance_ms / 1000
        self._members: list[tuple[Runner, Bell]] = []
        self._next: Runner | None = None  # waiting or claiming: the station that will claim
        self._claim: Claim | None = None  # claiming: its claim, once sent
        self._run: Run | None = None  # running: the job
        self._beside = False  # one lease has passed: the job may start beside other runs
        self._alone: asyncio.Future[None] | None = None  # set while the job waits in `turn`
        self._timer: asyncio.TimerHandle | None = None

    def join(self, runner: Runner, bell: Bell) -> None:
        """Add a station. `bell` wakes its fetcher."""
        self._members.append((runner, bell))

    # ── claiming ──

    def bars(self, runner: Runner) -> bool:
        """Return whether this station must not claim now."""
        return self.closed or (self._next is not None and self._next is not runner)

    def may_take(self, runner: Runner) -> bool:
        """Return whether a claim of this station is `alone`: it may get a job on its last chance.

        With several stores a claim is alone only if the others are barred. Otherwise they could
        claim, and start other jobs, before this store replies.
        """
        if runner.isolated:
            return True
        if self._next is runner:
            return self._beside or self._is_idle(runner)
        return len(self._members) <= 1 and self._is_idle(runner)

    def sent(self, runner: Runner, claim: Claim) -> None:
        """Record a claim. If this station claims alone, nothing is claimed before the reply."""
        if self._next is runner:
            self.closed, self._claim = True, claim

    def replied(self, claim: Claim | None) -> None:
        """Record the reply to a claim, after its jobs were started: open, unless the job came."""
        if claim is not None and claim is self._claim:
            self._open()

    def expect(self, runner: Runner) -> None:
        """Wait until this station can claim alone: its store has a job on its last chance."""
        if not self.closed and self._next is None:
            self._wait_for(runner)

    def check(self) -> None:
        """Check whether the worker is idle now. Fetchers call this in each pass while `closed`."""
        if self._run is not None:
            if self._alone is not None and not self._alone.done() and self._is_alone():
                self._alone.set_result(None)
        elif self._next is not None and self._claim is None:
            if self._is_idle(self._next):
                self._call(self._next)
            else:
                for runner, _ in self._members:
                    runner.batches.flush()  # claims that were under way may have added jobs

    # ── running ──

    def concerns(self, run: Run, handler: Handler) -> bool:
        """Return whether the run must be alone."""
        return run.lease.last_chance and not is_isolated(handler)

    def close(self, run: Run) -> bool:
        """The job has arrived: claim nothing more, and release the leases that still arrive.

        Returns False if other jobs run. The job must be released then. It is claimed again when
        they have ended.
        """
        crowded = not self._beside and self._others_run(run)
        self._stop_timer()
        if crowded:
            log.info(
                "%s has stalled %d times and is released until this worker's other jobs have ended",
                run,
                run.lease.stalls,
            )
            self._wait_for(run.runner)
        else:
            log.info(
                "%s has stalled %d times and runs alone: its next stall fails it",
                run,
                run.lease.stalls,
            )
            self._run, self._next, self._claim, self.closed = run, None, None, True
        for runner, bell in self._members:
            runner.releasing = True
            runner.batches.flush()
            bell.ring()
        return not crowded

    async def turn(self) -> None:
        """Wait until the job may start: all other runs are settled, or one lease has passed."""
        if not self._is_alone():
            if not self._beside:
                self._alone = asyncio.get_running_loop().create_future()
                try:
                    await asyncio.wait([self._alone], timeout=self._lease_s)
                finally:
                    self._alone = None
            if not self._is_alone():
                log.warning(
                    "%s starts beside other jobs: they did not end within one lease (%g s)",
                    self._run,
                    self._lease_s,
                )
        self._beside = False
        self._timer = asyncio.get_running_loop().call_later(self._max_s, self._open)

    def leave(self, run: Run) -> None:
        """The job has ended, or will not start: claim again, unless that was allowed before."""
        if self._run is not run:
            return
        self._open()
        if run in run.runner.held:  # its outcome is not settled
            self._next = run.runner
            self._call(run.runner)

    def waiting_in(self, runner: Runner) -> Run | None:
        """Return the job that waits in `turn`, if it belongs to this station."""
        waits = self._alone is not None and self._run is not None and self._run.runner is runner
        return self._run if waits else None

    # ── changes of state ──

    def _wait_for(self, runner: Runner) -> None:
        """Change to waiting."""
        self.closed, self._next, self._claim = True, runner, None
        self._timer = asyncio.get_running_loop().call_later(self._lease_s, self._tired, runner)
        for member, bell in self._members:
            member.batches.flush()
            bell.ring()

    def _tired(self, runner: Runner) -> None:
        self._beside = True
        self._call(runner)

    def _call(self, runner: Runner) -> None:
        """Change to claiming. A store that does not reply blocks the others for one lease."""
        self._stop_timer()
        self.closed = False
        self._timer = asyncio.get_running_loop().call_later(self._lease_s, self._open)
        for member, bell in self._members:
            if member is runner:
                runner.releasing = runner.stopping
                bell.ring()

    def _open(self) -> None:
        """Change to open."""
        self._stop_timer()
        self.closed = self._beside = False
        self._next = self._claim = self._run = None
        for runner, bell in self._members:
            runner.releasing = runner.stopping
            bell.ring()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # ── what else the worker does ──

    def _is_idle(self, runner: Runner) -> bool:
        """Return whether nothing runs and no claim is under way.

        Outcomes of `runner` may wait to be settled: that happens in the exchange that claims.
        """
        return self._slots.free == self._slots.total and not any(
            member.open or (member.held and member is not runner) for member, _ in self._members
        )

    def _is_alone(self) -> bool:
        """Return whether at most one slot is taken and one lease held, by the job itself."""
        return (
            self._slots.free >= self._slots.total - 1
            and sum(len(runner.held) for runner, _ in self._members) <= 1
        )

    def _others_run(self, run: Run) -> bool:
        return any(
            not other.concluded and other is not run
            for runner, _ in self._members
            for other in runner.held
        )
