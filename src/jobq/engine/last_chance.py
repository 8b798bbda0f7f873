"""Runs a job whose next stall would fail it alone, so that a job that kills its worker takes no other job with it.

A store gives such a job only to a claim that is `alone`: the worker runs nothing else and has no other claim under way. If
the worker held the job while others run, one of those could kill the worker, and the job would fail without having run.

    open ──── a store reports that such a job is next (`Settled.last_chance`) ───► waiting: the worker claims nothing
    waiting ─ the worker's runs have ended, or one lease has passed ─────────────► claiming: one claim, of that store
    claiming ─ the claim brought the job ──► running: the worker claims nothing until it ends, or for `last_chance_ms`
    claiming ─ it did not: another worker has the job ───────────────────────────► open
    running ──────────────────────────────────────────────────────────────────────► open

A worker that is idle and has one store claims `alone` right away, and goes from open to running. Leases that arrive while
the job waits to start are released first. This is rare: they are replies that took longer than a lease.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from jobq.engine.handler import Handler
from jobq.engine.run import Run
from jobq.engine.settings import WorkerSettings
from jobq.engine.slots import Bell, Slots

if TYPE_CHECKING:
    from jobq.engine.runner import Runner

log = logging.getLogger("jobq")

_ISOLATED = ("process", "command")
"""Executors that run a job in its own process. Such a job can die without its worker."""


def is_isolated(handler: Handler) -> bool:
    """Whether jobs of this task cannot kill their worker."""
    return handler.executor in _ISOLATED


class LastChance:
    """Decides when a worker may claim. One per worker, shared by its stations: one such job at a time waits or runs."""

    def __init__(self, slots: Slots, settings: WorkerSettings) -> None:
        self.closed = False  # no fetcher may claim
        self._slots = slots
        self._lease_s = settings.lease_ms / 1000
        self._max_s = settings.last_chance_ms / 1000
        self._members: list[tuple[Runner, Bell]] = []
        self._next: Runner | None = (
            None  # waiting or claiming: only this runner's fetcher will claim
        )
        self._asking = False  # claiming: the claim is under way
        self._run: Run | None = None  # running: the job, from the arrival of its lease
        self._beside = False  # one lease has passed: the job starts beside the runs that are left
        self._alone: asyncio.Future[None] | None = None  # set while the job waits in `turn`
        self._timer: asyncio.TimerHandle | None = None

    def join(self, runner: Runner, bell: Bell) -> None:
        """Add a station. `bell` wakes its fetcher."""
        self._members.append((runner, bell))

    # ── claiming ──

    def bars(self, runner: Runner) -> bool:
        """Whether the fetcher of this runner must not claim now."""
        return self.closed or (self._next is not None and self._next is not runner)

    def may_take(self, runner: Runner) -> bool:
        """Whether the next claim of this runner is `alone`, so that it may bring a job on its last chance.

        With several stores it is only when all others are barred: they could claim while this one has not answered."""
        if self._next is runner or runner.isolated:
            return True
        return len(self._members) <= 1 and self._is_idle(runner)

    def asks(self, runner: Runner) -> None:
        """A claim that is `alone` is sent. If the job is expected, no other claim is made until the store answers."""
        if self._next is runner:
            self.closed = self._asking = True

    def answered(self, runner: Runner) -> None:
        """A claim that was `alone` is answered. If it did not bring the job, another worker has it: all claim again."""
        if self._asking and self._next is runner:
            self._open()

    def expect(self, runner: Runner) -> None:
        """A store has a job on its last chance for this runner: claim nothing until the runner can take it alone."""
        if self.closed or self._next is not None:
            return
        self._wait_for(runner)

    def look(self) -> None:
        """Check whether the worker is idle now. Fetchers call this in each pass while `closed`."""
        if self._run is not None:
            if self._alone is not None and not self._alone.done() and self._is_alone():
                self._alone.set_result(None)
        elif self._next is not None and not self._asking:
            if self._is_idle(self._next):
                self._call()
            else:
                for runner, _ in self._members:
                    runner.batches.flush()  # jobs of claims that were under way

    # ── running ──

    def concerns(self, run: Run, handler: Handler) -> bool:
        """Whether the run must be alone."""
        return run.lease.last_chance and not is_isolated(handler)

    def close(self, run: Run) -> bool:
        """The job has arrived: from now on nothing is claimed, and leases that arrive are released.

        Returns False if other jobs run. The job is to be released then, and is claimed again when they have ended."""
        crowded = not self._beside and self._others_run(run)
        self._stop_timer()
        if crowded:
            log.info(
                "%s has stalled %d times and is released until other jobs of this worker have ended",
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
            self._run, self._next, self._asking, self.closed = run, None, False, True
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
                    "%s starts beside other jobs: they did not end within one lease (%g s)",
                    self._run,
                    self._lease_s,
                )
        self._beside = False
        self._timer = asyncio.get_running_loop().call_later(self._max_s, self._open)

    def leave(self, run: Run) -> None:
        """The job has ended, or will not start: claim again, unless that was allowed before."""
        if self._run is run:
            self._open()

    def waiting_in(self, runner: Runner) -> Run | None:
        """The job that waits in `turn`, if it belongs to this runner."""
        waits = self._alone is not None and self._run is not None and self._run.runner is runner
        return self._run if waits else None

    # ── changes of state ──

    def _wait_for(self, runner: Runner) -> None:
        """Open or claiming → waiting."""
        self.closed, self._next, self._asking = True, runner, False
        self._timer = asyncio.get_running_loop().call_later(self._lease_s, self._tired)
        for member, bell in self._members:
            member.batches.flush()
            bell.ring()

    def _tired(self) -> None:
        self._beside = True
        self._call()

    def _call(self) -> None:
        """Waiting → claiming. A store that does not answer keeps the others waiting for one lease at most."""
        self._stop_timer()
        self.closed = False
        self._timer = asyncio.get_running_loop().call_later(self._lease_s, self._open)
        for runner, bell in self._members:
            if runner is self._next:
                runner.releasing = runner.refusing
                bell.ring()

    def _open(self) -> None:
        """Any → open."""
        self._stop_timer()
        self.closed = self._asking = self._beside = False
        self._next = self._run = None
        for runner, bell in self._members:
            runner.releasing = runner.refusing
            bell.ring()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # ── what else the worker does ──

    def _is_idle(self, runner: Runner) -> bool:
        """Whether nothing runs and no claim is under way. Outcomes of `runner` may wait: they are settled with its claim."""
        return self._slots.free == self._slots.total and not any(
            member.open or (member.held and member is not runner) for member, _ in self._members
        )

    def _is_alone(self) -> bool:
        """Whether no slot but one is taken, by a run or by a claim under way, and no lease but one is held."""
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
