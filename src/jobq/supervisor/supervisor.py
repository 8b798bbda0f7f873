"""Decides which worker processes there are: starts, restarts, replaces and stops them.

Every event (a signal, a report, the end of a process, a time that has come) wakes one loop, which
compares what there is with what there should be. Without events, the supervisor sleeps.

The first process starts alone. If it ends before it is up, the supervisor ends too: the others
would fail for the same reason. When it is up, the others start.

A process is replaced in this order: the successor starts; it is up; the old process drains. Only
one process is replaced at a time, so the machine needs room for one more.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from jobq.supervisor.process import Order, Report, Seat, Why, WorkerProcess

log = logging.getLogger("jobq.supervisor")

_CLOSE_S = 30.0
"""Seconds that a process has to exit after its jobs are finished or released. A worker waits up to
22 s for a store that does not reply."""
_SLOW_START_S = 60.0
"""Seconds after which a successor that is not up is worth a warning."""

Changes = Callable[[Path], AsyncIterator[list[str]]]


class Supervisor:
    """Keeps `processes` worker processes running until it is told to stop.

    `command` starts a worker process in `folder`, and `name` is the first part of the workers'
    names. `drain_s` is how long the processes let running jobs finish. `changes` yields the source
    files that have changed; each time, all processes are replaced. `on_end` is called with the id
    of each process that has ended.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        processes: int,
        name: str,
        drain_s: float,
        folder: Path,
        changes: Changes | None = None,
        on_end: Callable[[int], None] | None = None,
    ) -> None:
        self._command = command
        self._name = name
        self._drain_s = drain_s
        self._folder = folder
        self._changes = changes
        self._on_end = on_end
        self._seats = [Seat() for _ in range(processes)]
        self._leaving: dict[WorkerProcess, asyncio.TimerHandle] = {}  # and when each is killed
        self._was_up = False  # one process has been up
        self._stopping = False
        self._code = 0
        self._in_terminal = os.isatty(0)
        self._woken = asyncio.Event()

    async def run(self) -> int:
        """Supervise until stopped. Returns the exit code for the supervisor's own process."""
        watching = None if self._changes is None else asyncio.create_task(self._watch())
        with self._signals_caught():
            try:
                while not self._over():
                    self._woken.clear()
                    self._start_missing()
                    self._start_successor()
                    await self._sleep()
                    self._bury()
                return self._code
            finally:
                if watching is not None:
                    watching.cancel()
                for process in self._all():
                    process.kill()

    def problem(self) -> str | None:
        """Why not all processes work, in words. None if they do. Any thread may call this."""
        if self._stopping:
            return "the supervisor stops"
        wanted = [seat for seat in self._seats if not seat.shut_down]
        up = sum(seat.process is not None and seat.process.up for seat in wanted)
        return None if up == len(wanted) else f"{up} of {len(wanted)} worker processes are up"

    # ── the loop ──

    def _over(self) -> bool:
        empty = not any(self._all())
        return empty and (self._stopping or all(seat.shut_down for seat in self._seats))

    async def _sleep(self) -> None:
        """Wait for an event, or until a process may be started."""
        now = time.monotonic()
        due = [seat.due for seat in self._seats if seat.due > now and not self._stopping]
        try:
            async with asyncio.timeout(min(due) - now if due else None):
                await self._woken.wait()
        except TimeoutError:
            pass

    def _start_missing(self) -> None:
        now = time.monotonic()
        for seat in self._seats if self._was_up else self._seats[:1]:
            if not (self._stopping or seat.processes or seat.shut_down) and seat.due <= now:
                seat.process = self._start(seat)

    def _start_successor(self) -> None:
        """Start the successor of one process that is to be replaced, unless another one starts."""
        now = time.monotonic()
        if self._stopping or any(seat.successor for seat in self._seats):
            return
        for seat in self._seats:
            if seat.why is not None and seat.process is not None and seat.due <= now:
                seat.successor = successor = self._start(seat)
                if successor is not None:
                    asyncio.get_running_loop().call_later(
                        _SLOW_START_S, self._warn_if_slow, seat, successor
                    )
                return

    def _bury(self) -> None:
        """Handle the processes that have ended."""
        for process in [process for process in self._all() if process.ended()]:
            if self._on_end is not None:
                self._on_end(process.pid)
            if process in self._leaving:
                self._left(process)
                continue
            seat = next(seat for seat in self._seats if process in seat.processes)
            if process is seat.successor:
                seat.successor = None
                self._successor_died(seat, process)
            else:
                seat.process, seat.successor = seat.successor, None
                self._died(seat, process)

    def _all(self) -> list[WorkerProcess]:
        return [*self._leaving, *(process for seat in self._seats for process in seat.processes)]

    # ── starting ──

    def _start(self, seat: Seat) -> WorkerProcess | None:
        """Start a process under the first free name. The seat waits if the system refuses."""
        taken = {process.name for process in self._all()}
        name = next(name for n in count(1) if (name := f"{self._name}-{n}") not in taken)
        try:
            process = WorkerProcess(name, self._command, self._folder, self._reported)
        except OSError as error:
            delay_s = seat.failed(0.0, time.monotonic())
            log.error(
                "worker process %s could not be started: %s; trying again in %g s",
                name,
                error,
                delay_s,
            )
            return None
        log.debug("%s starts", process)
        return process

    def _reported(self, process: WorkerProcess, report: Report) -> None:
        self._woken.set()
        seat = next((seat for seat in self._seats if process in seat.processes), None)
        if seat is None:  # it is leaving already
            return
        if report is Report.UP:
            log.info("%s is up after %.1f s", process, process.age_s)
            self._was_up = True
            if process is seat.successor:
                self._replace(seat, process)
        elif report is Report.FULL:
            seat.why = seat.why or Why.RECYCLE
        else:
            seat.shut_down, seat.why = True, None
            self._dismiss_successor(seat)

    def _replace(self, seat: Seat, successor: WorkerProcess) -> None:
        """The successor is up: have the old process drain."""
        assert seat.process is not None
        self._dismiss(seat.process, Order.DRAIN)
        seat.process, seat.successor = successor, None
        why, seat.why = seat.why, None
        if why is Why.RESTART and not any(seat.why is Why.RESTART for seat in self._seats):
            log.info("all worker processes have been replaced")

    def _warn_if_slow(self, seat: Seat, successor: WorkerProcess) -> None:
        if seat.successor is successor:
            log.warning(
                "%s is not up after %g s; the process that it is to replace works on",
                successor,
                _SLOW_START_S,
            )

    # ── ends ──

    def _died(self, seat: Seat, process: WorkerProcess) -> None:
        """A process has ended that nobody had told to."""
        seat.why = None
        if seat.shut_down:
            log.info("%s was shut down by an operator and is not replaced", process)
        elif seat.process is not None:
            log.error("%s %s; its successor starts already", process, process.ending)
        elif self._was_up:
            delay_s = seat.failed(process.age_s, time.monotonic())
            log.error("%s %s; starting it again in %g s", process, process.ending, delay_s)
        elif self._changes is not None:
            seat.due = float("inf")
            log.error("%s %s before it was up; waiting for a change", process, process.ending)
        else:
            log.critical(
                "%s %s before it was up: no worker process could start, so jq-worker ends",
                process,
                process.ending,
            )
            self._stopping = True
            self._code = process.exit_code if process.exit_code > 0 else 1

    def _successor_died(self, seat: Seat, successor: WorkerProcess) -> None:
        """A successor has ended before it was up. The process that it was to replace works on."""
        if seat.why is Why.RESTART:
            for other in self._seats:
                other.why = None if other.why is Why.RESTART else other.why
            log.error(
                "%s %s before it was up: the restart ends here, and the processes that were not "
                "replaced work on",
                successor,
                successor.ending,
            )
        else:
            delay_s = seat.failed(successor.age_s, time.monotonic())
            log.error(
                "%s %s before it was up; trying again in %g s",
                successor,
                successor.ending,
                delay_s,
            )

    def _left(self, process: WorkerProcess) -> None:
        """A process has ended that was told to."""
        self._leaving.pop(process).cancel()
        if process.exit_code == 0 or (not process.up and process.exit_code == -signal.SIGTERM):
            log.info("%s has stopped", process)
            return
        log.error("%s %s while it stopped", process, process.ending)
        if self._stopping:
            self._code = 1

    # ── stopping ──

    def _dismiss(self, process: WorkerProcess, order: Order) -> None:
        """Order a process to stop, and kill it if it has not ended in time."""
        if (timer := self._leaving.get(process)) is not None:
            timer.cancel()
        process.order(order)
        patience_s = _CLOSE_S + (self._drain_s if order is Order.DRAIN else 0.0)
        self._leaving[process] = asyncio.get_running_loop().call_later(
            patience_s, self._lose_patience, process, patience_s
        )

    def _dismiss_successor(self, seat: Seat) -> None:
        if seat.successor is not None:
            self._dismiss(seat.successor, Order.DRAIN)
            seat.successor = None

    def _lose_patience(self, process: WorkerProcess, patience_s: float) -> None:
        log.error("%s has not stopped within %g s and is killed", process, patience_s)
        process.kill()

    def _stop(self, number: signal.Signals) -> None:
        """Drain all processes. The second time, have them release their jobs."""
        processes = self._all()
        if self._stopping:
            log.info("%s: releasing the running jobs of all processes", number.name)
        else:
            log.info(
                "%s: finishing the running jobs of %d processes (up to %g s); "
                "send it again to release them now",
                number.name,
                len(processes),
                self._drain_s,
            )
        order = Order.RELEASE if self._stopping else Order.DRAIN
        self._stopping = True
        for process in processes:
            if order is Order.RELEASE or process not in self._leaving:
                self._dismiss(process, order)
        for seat in self._seats:
            seat.process = seat.successor = None
        self._woken.set()

    # ── restarting ──

    def _restart(self, cause: str) -> None:
        """Replace all processes, one after the other. Empty seats are filled."""
        if self._stopping:
            return
        log.info("%s: replacing all worker processes, one after the other", cause)
        for seat in self._seats:
            seat.shut_down = False
            seat.forgive()
            seat.why = None if seat.process is None else Why.RESTART
            self._dismiss_successor(seat)  # it may have the old code
        self._woken.set()

    async def _watch(self) -> None:
        assert self._changes is not None
        try:
            async for files in self._changes(self._folder):
                more = f" and {len(files) - 1} more" if len(files) > 1 else ""
                self._restart(f"{files[0]}{more} changed")
        except Exception:
            log.exception("--reload has stopped watching %s", self._folder)

    # ── signals ──

    @contextmanager
    def _signals_caught(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        caught: dict[signal.Signals, Callable[[], None]] = {
            signal.SIGCHLD: self._woken.set,
            signal.SIGHUP: self._hang_up,
            signal.SIGTERM: lambda: self._stop(signal.SIGTERM),
            signal.SIGINT: lambda: self._stop(signal.SIGINT),
            signal.SIGUSR1: lambda: self._pass_on(signal.SIGUSR1),
            signal.SIGUSR2: lambda: self._pass_on(signal.SIGUSR2),
        }
        for number, handle in caught.items():
            loop.add_signal_handler(number, handle)
        try:
            yield
        finally:
            # The process is about to exit. A signal that still arrives must not change its code.
            signal.pthread_sigmask(signal.SIG_BLOCK, caught)
            for number in caught:
                loop.remove_signal_handler(number)

    def _hang_up(self) -> None:
        """Replace the processes. But stop if the terminal is gone: SIGHUP has told so."""
        if self._in_terminal and not os.isatty(0):
            self._stop(signal.SIGHUP)
        else:
            self._restart("SIGHUP")

    def _pass_on(self, number: signal.Signals) -> None:
        for process in self._all():
            process.signal(number)
