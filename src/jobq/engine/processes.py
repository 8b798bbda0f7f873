"""Runs in other processes: child processes and programs.

The executor runs the job and reports how it ended. The outcome is decided here, unless the process
has decided it.
"""

from __future__ import annotations

import asyncio
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

from jobq.core.records.jobs import AnyOutcome, Complete
from jobq.core.rules.decide import Crashed, End, Released, TimedOut
from jobq.engine.handler import Around, Handler, Passed
from jobq.engine.journal import Journal
from jobq.engine.run import Run
from jobq.executors import ApartExecutor
from jobq.executors.exits import Died, Ended, Interrupted
from jobq.executors.running import running

if TYPE_CHECKING:
    from jobq.engine.runner import Runner


class ApartRuns:
    """The runs of a runner that are in other processes."""

    def __init__(self, runner: Runner, journal: Journal) -> None:
        self._runner = runner
        self._journal = journal

    async def run(self, run: Run, handler: Handler, executor: ApartExecutor) -> None:
        """Run a job in another process: the task of a run."""
        outcome: AnyOutcome | None
        try:
            if (around := self._runner.around(handler)) is not None:
                outcome = await self._run_within(around, run, handler, executor)
            else:
                ended = await executor.run(run, handler, partial(self._begin, run, handler))
                outcome = self._reported(run, handler, ended)
        except BaseException as error:
            outcome = self._runner.raised(run, handler, error)
        self._runner.close(run, outcome)

    async def _run_within(
        self, around: Around, run: Run, handler: Handler, executor: ApartExecutor
    ) -> AnyOutcome | None:
        """Run a job inside its middleware, which is in the worker."""
        running.set(run)
        passed = Passed()
        try:
            value = await around((run,), partial(self._call, passed, run, handler, executor))
        except BaseException as error:
            if error is passed.error and not run.concluded:
                return passed.outcome
            raise
        if run.concluded:
            return None
        if passed.error is None and passed.outcome is not None and value is passed.value:
            return passed.outcome
        lease = run.lease
        return Complete(
            queue=lease.queue, id=lease.id, token=lease.token, result=handler.encode(value, lease)
        )

    async def _call(
        self, passed: Passed, run: Run, handler: Handler, executor: ApartExecutor
    ) -> Any:
        """Run the job in its process, and return or raise what its handler did."""
        if run.end is not None or run.concluded:
            raise asyncio.CancelledError
        run.apart = executor
        try:
            ended = await executor.run(run, handler, partial(self._begin, run, handler))
        finally:
            # From here on, an interruption is meant for the middleware, in the task of the run.
            run.apart = None
        outcome = self._reported(run, handler, ended)
        interrupted = isinstance(ended, Interrupted) or (
            isinstance(ended, Died) and run.end is not None and ended.asked
        )
        return passed.pass_on(outcome, run.lease, interrupted=interrupted)

    def _begin(self, run: Run, handler: Handler) -> None:
        """A process is about to get the job. Its timeout counts from now."""
        if run.end is not None or run.concluded:
            raise asyncio.CancelledError
        run.check()
        if run.timer is not None:
            # The first process died before it began the job, as far as it has told. The timeout
            # goes on, or a process that lies would get it again.
            return
        if self._journal.starts:
            self._journal.started(run)
        self._runner.interrupts.arm(run, handler, monotonic())

    def _reported(self, run: Run, handler: Handler, ended: Ended) -> AnyOutcome | None:
        """Return the outcome of a run in another process. None if its lease is lost."""
        if run.concluded:
            return None
        end: End
        if isinstance(ended, Interrupted):
            end = run.end or Released()
        elif isinstance(ended, Died):
            end = run.end if run.end is not None and ended.asked else Crashed(str(ended))
            if isinstance(end, TimedOut) and ended.killed:
                end = TimedOut(end.seconds, killed=True)
        else:
            self._journal.failed(run, ended, None)  # the process has decided, by the same rules
            return ended
        return self._runner.decide(run, end, handler.retry)
