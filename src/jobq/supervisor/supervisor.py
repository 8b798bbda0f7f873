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

from jobq.supervisor.process import WorkerProcess
from jobq.supervisor.slot import Slot, Why
from jobq.supervisor.wire import Order, Report

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
        self._slots = [Slot() for _ in range(processes)]
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
        wanted = [slot for slot in self._slots if not slot.shut_down]
        up = sum(slot.process is not None and slot.process.up for slot in wanted)
        return None if up == len(wanted) else f"{up} of {len(wanted)} worker processes are up"

    # ── the loop ──

    def _over(self) -> bool:
        empty = not any(self._all())
        return empty and (self._stopping or all(slot.shut_down for slot in self._slots))

    async def _sleep(self) -> None:
        """Wait for an event, or until a process may be started."""
        now = time.monotonic()
        due = [slot.due for slot in self._slots if slot.due > now and not self._stopping]
        try:
            async with asyncio.timeout(min(due) - now if due else None):
                await self._woken.wait()
        except TimeoutError:
            pass

    def _start_missing(self) -> None:
        now = time.monotonic()
        for slot in self._slots if self._was_up else self._slots[:1]:
            if not (self._stopping or slot.processes or slot.shut_down) and slot.due <= now:
                slot.process = self._start(slot)

    def _start_successor(self) -> None:
        """Start the successor of one process that is to be replaced, unless another one starts."""
        now = time.monotonic()
        if self._stopping or any(slot.successor for slot in self._slots):
            return
        for slot in self._slots:
            if slot.why is not None and slot.process is not None and slot.due <= now:
                slot.successor = successor = self._start(slot)
                if successor is not None:
                    asyncio.get_running_loop().call_later(
                        _SLOW_START_S, self._warn_if_slow, slot, successor
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
            slot = next(slot for slot in self._slots if process in slot.processes)
            if process is slot.successor:
                slot.successor = None
                self._successor_died(slot, process)
            else:
                slot.process, slot.successor = slot.successor, None
                self._died(slot, process)

    def _all(self) -> list[WorkerProcess]:
        return [*self._leaving, *(process for slot in self._slots for process in slot.processes)]

    # ── starting ──

    def _start(self, slot: Slot) -> WorkerProcess | None:
        """Start a process under the first free name. The slot waits if the system refuses."""
        taken = {process.name for process in self._all()}
        name = next(name for n in count(1) if (name := f"{self._name}-{n}") not in taken)
        try:
            process = WorkerProcess(name, self._command, self._folder, self._reported)
        except OSError as error:
            delay_s = slot.failed(0.0, time.monotonic())
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
        slot = next((slot for slot in self._slots if process in slot.processes), None)
        if slot is None:  # it is leaving already
            return
        if report is Report.UP:
            log.info("%s is up after %.1f s", process, process.age_s)
            self._was_up = True
            if process is slot.successor:
                self._replace(slot, process)
        elif report is Report.FULL:
            slot.why = slot.why or Why.RECYCLE
        else:
            slot.shut_down, slot.why = True, None
            self._dismiss_successor(slot)

    def _replace(self, slot: Slot, successor: WorkerProcess) -> None:
        """The successor is up: have the old process drain."""
        assert slot.process is not None
        self._dismiss(slot.process, Order.DRAIN)
        slot.process, slot.successor = successor, None
        why, slot.why = slot.why, None
        if why is Why.RESTART and not any(slot.why is Why.RESTART for slot in self._slots):
            log.info("all worker processes have been replaced")

    def _warn_if_slow(self, slot: Slot, successor: WorkerProcess) -> None:
        if slot.successor is successor:
            log.warning(
                "%s is not up after %g s; the process that it is to replace works on",
                successor,
                _SLOW_START_S,
            )

    # ── ends ──

    def _died(self, slot: Slot, process: WorkerProcess) -> None:
        """A process has ended that nobody had told to."""
        slot.why = None
        if slot.shut_down:
            log.info("%s was shut down by an operator and is not replaced", process)
        elif slot.process is not None:
            log.error("%s %s; its successor starts already", process, process.ending)
        elif self._was_up:
            delay_s = slot.failed(process.age_s, time.monotonic())
            log.error("%s %s; starting it again in %g s", process, process.ending, delay_s)
        elif self._changes is not None:
            slot.due = float("inf")
            log.error("%s %s before it was up; waiting for a change", process, process.ending)
        else:
            log.critical(
                "%s %s before it was up: no worker process could start, so jq-worker ends",
                process,
                process.ending,
            )
            self._stopping = True
            self._code = process.exit_code if process.exit_code > 0 else 1

    def _successor_died(self, slot: Slot, successor: WorkerProcess) -> None:
        """A successor has ended before it was up. The process that it was to replace works on."""
        if slot.why is Why.RESTART:
            for other in self._slots:
                other.why = None if other.why is Why.RESTART else other.why
            log.error(
                "%s %s before it was up: the restart ends here, and the processes that were not "
                "replaced work on",
                successor,
                successor.ending,
            )
        else:
            delay_s = slot.failed(successor.age_s, time.monotonic())
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

    def _dismiss_successor(self, slot: Slot) -> None:
        if slot.successor is not None:
            self._dismiss(slot.successor, Order.DRAIN)
            slot.successor = None

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
        for slot in self._slots:
            slot.process = slot.successor = None
        self._woken.set()

    # ── restarting ──

    def _restart(self, cause: str) -> None:
        """Replace all processes, one after the other. Empty slots are filled."""
        if self._stopping:
            return
        log.info("%s: replacing all worker processes, one after the other", cause)
        for slot in self._slots:
            slot.shut_down = False
            slot.forgive()
            slot.why = None if slot.process is None else Why.RESTART
            self._dismiss_successor(slot)  # it may have the old code
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
