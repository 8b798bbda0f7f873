"""Stops runs before their handlers return, and catches the signals that ask for it.

A run is interrupted when it is past its timeout, when its job is cancelled, when its lease is lost,
and when the worker stops. If it goes on nevertheless, it is settled, and keeps its slot.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from jobq.core.policies import UNDECLARED, Retry
from jobq.core.records.jobs import JobKey, LeaseState, QueueName
from jobq.core.rules.decide import End, Raised, Released, TimedOut
from jobq.engine.handler import Handler
from jobq.engine.run import Run, lost
from jobq.engine.slots import Bell

if TYPE_CHECKING:
    from jobq.engine.runner import Runner

log = logging.getLogger("jobq")


class Interrupts:
    """Interrupts the runs of a runner."""

    def __init__(
        self, runner: Runner, bell: Bell, grace_ms: int, on_lost: Callable[[Run], None] | None
    ) -> None:
        """`on_lost` is called with a run whose lease is lost while it runs."""
        self._runner = runner
        self._bell = bell
        self._grace_ms = grace_ms
        self._on_lost = on_lost
        self.early: set[JobKey] = set()
        """Jobs that were cancelled before their lease arrived."""

    def arm(self, run: Run, handler: Handler, started: float) -> None:
        """Set the timeout of a run. `started` (monotonic) is when its call started, or earlier."""
        timeout_ms = run.lease.timeout_ms
        if timeout_ms is None:
            timeout_ms = handler.timeout_ms
        if timeout_ms:
            run.timeout_s = timeout_ms / 1000
            run.until = started + timeout_ms / 1000 + self._grace_s(run)
            run.timer = self._runner.loop.call_later(
                run.timeout_s, self._runner.guard, run, self._time_out, handler
            )

    def _time_out(self, run: Run, handler: Handler) -> None:
        """Interrupt a run that is past its timeout. After its grace it is settled in any case."""
        if run.concluded or (run.task is None and run.batch is None):
            return
        run.cancelled = True
        run.end = TimedOut(run.timeout_s)
        if run.apart is None:
            run.timer = self._runner.loop.call_later(
                self._grace_s(run),
                self._runner.guard,
                run,
                self._settle_unfinished,
                run.end,
                handler.retry,
            )
        self.interrupt(run)

    def cancel(self, queue: QueueName, id: str) -> None:
        """Stop the run of a cancelled job. If its lease has not arrived yet, it will not start."""
        for run in self._runner.held:
            if run.lease.id == id and run.lease.queue == queue:
                self._runner.guard(run, self._cancel_run)
                return
        if len(self.early) < 10_000:
            self.early.add(JobKey(queue, id))

    def _cancel_run(self, run: Run) -> None:
        run.cancel_asked = True
        if run.concluded or run.cancelled:
            return
        run.cancelled = True
        run.end = Released()  # the store ends a cancelled job as cancelled when it is released
        if run.batch is not None:
            self._runner.batches.stop_run(run)
        elif run.apart is not None:
            self.interrupt(run)
        else:
            # Soon: see interrupt.
            self._runner.loop.call_soon(self._runner.guard, run, self._request_stop)

    def _request_stop(self, run: Run) -> None:
        if run.executor is not None:
            run.executor.request_stop(run)
        else:  # in its middleware, or a last chance that has not started
            self._cancel_task(run)

    def lease_reported(self, run: Run, state: LeaseState) -> None:
        """Act on the state of a lease that the store returned to the keeper or to a note.

        The state is ignored for a concluded run: the reply that settles the run says whether the
        lease was still held.
        """
        if run.concluded or state == "held":
            return
        self._runner.guard(run, self._cancel_run if state == "cancel" else self._lease_lost)

    def _lease_lost(self, run: Run) -> None:
        log.warning("%s", lost(run))
        run.cancelled = True
        self._runner.conclude(run, None)
        self.interrupt(run)
        self._bell.ring()
        if self._on_lost is not None:
            self._on_lost(run)

    def exited(self, run: Run, error: BaseException) -> None:
        """End a run as if its handler had raised this: a task that the handler created did."""
        stops = isinstance(error, KeyboardInterrupt)
        batch = run.batch
        for each in (run,) if batch is None else batch.runs:
            if not each.concluded:
                each.end = each.end or (Released() if stops else Raised(error))
        if batch is not None and batch.task is not None:
            self._runner.loop.call_soon(batch.task.cancel)
        elif not run.concluded:
            self.interrupt(run)
        if stops:
            self._runner.interrupted()

    def release_running(self) -> None:
        """Interrupt all runs, and release those that end by that. See also `release_rest`."""
        for run in tuple(self._runner.held):
            if not run.concluded:
                run.cancelled = True
                run.end = run.end or Released()
                self._runner.guard(run, self.interrupt)

    def release_rest(self) -> None:
        """Release the runs that go on although they were interrupted. Their processes end first."""
        for run in tuple(self._runner.held):
            if not run.concluded:
                self._runner.guard(run, self._release_unfinished)

    def _release_unfinished(self, run: Run) -> None:
        if run.apart is not None:
            run.apart.kill(run)
        self._settle_unfinished(run, Released(), UNDECLARED)

    def _settle_unfinished(self, run: Run, end: End, retry: Retry) -> None:
        """Settle a run that goes on after it was interrupted. It keeps its slot until it ends."""
        if not run.concluded:
            log.warning(
                "%s was asked to stop and goes on: %s",
                run,
                "it is settled, and keeps its slot until it ends"
                if run.apart is None
                else "its process is killed",
            )
            self._runner.conclude(run, self._runner.decide(run, end, retry))
            self._bell.ring()

    def interrupt(self, run: Run) -> None:
        """Raise CancelledError at the next await of a run, or in its process.

        `call_soon` lets the task make its first step before: a task that is cancelled before that
        never enters its coroutine, and would not close the run.
        """
        if run.batch is not None:
            self._runner.batches.stop_run(run)
        elif run.apart is not None:
            run.apart.stop(run, self._grace_s(run))
        elif run.task is not None:
            self._runner.loop.call_soon(self._runner.guard, run, self._cancel_task)

    def _cancel_task(self, run: Run) -> None:
        if run.apart is not None:  # its middleware has called the process meanwhile
            run.apart.stop(run, self._grace_s(run))
        elif run.task is not None:
            run.task.cancel()

    def _grace_s(self, run: Run) -> float:
        """How long the run may take to stop when it is asked to."""
        own = None if run.handler is None else run.handler.grace_ms
        return (self._grace_ms if own is None else own) / 1000


# Catches SIGTERM and SIGINT while a worker runs, and restores the handlers afterwards.

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def signals_caught(
    notify: Callable[[signal.Signals], None], *, last: bool = False
) -> Iterator[None]:
    """Call `notify` in the running event loop for each SIGTERM and SIGINT while the context lasts.

    Does nothing outside the main thread, where signals cannot be caught. With `last`, the process
    is about to exit, so signals that arrive after the context are ignored: the default action would
    turn an orderly exit into a death by signal. A context that ends with an error restores the
    handlers in any case.
    """
    loop = asyncio.get_running_loop()
    numbers: list[signal.Signals] = []
    for number in _SIGNALS:
        try:
            loop.add_signal_handler(number, notify, number)
            numbers.append(number)
        except (NotImplementedError, RuntimeError, ValueError):
            break
    orderly = False
    try:
        yield
        orderly = True
    finally:
        if last and orderly and numbers:
            _ignore(loop, numbers)
        else:
            for number in numbers:
                loop.remove_signal_handler(number)


def _ignore(loop: asyncio.AbstractEventLoop, numbers: list[signal.Signals]) -> None:
    """Ignore these signals from now on.

    Removing the loop's handler restores the default action for a moment, so signals are blocked
    until they are ignored.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        for number in numbers:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_IGN)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
