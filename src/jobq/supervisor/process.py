"""One worker process, seen by the supervisor: its words, its position, its failures."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path

# What a supervisor and its worker processes say to each other, one word per line.

VARIABLE = "JOBQ_SUPERVISED"
"""Environment variable of a worker process: `descriptor:pid of the supervisor:worker's name`.

The process removes it at once, so a jq-worker that a handler starts is not taken for supervised.
"""


class Report(StrEnum):
    """What a worker process reports."""

    UP = "up"  # its stores are open, and it claims jobs
    FULL = "full"  # it has reached --max-jobs or --max-memory, and works on until it is replaced
    SHUT_DOWN = "shut-down"  # it stops because an operator said so: do not replace it


class Order(StrEnum):
    """What the supervisor orders. An order that is repeated changes nothing."""

    DRAIN = "drain"  # finish running jobs, for --drain at most, and exit
    RELEASE = "release"  # release running jobs now, and exit


class WorkerProcess:
    """A process that runs one worker. It starts with the object.

    `on_report` is called in the running event loop for each report of the process.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        folder: Path,
        on_report: Callable[[WorkerProcess, Report], None],
    ) -> None:
        # The kernel takes the death of the *thread* that started a process for the parent's.
        assert threading.current_thread() is threading.main_thread(), "start it in the main thread"
        self.name = name
        self.up = False
        self.started = time.monotonic()
        self._on_report = on_report
        self._rest = b""
        self._socket, theirs = socket.socketpair()
        with theirs:
            try:
                self._popen = subprocess.Popen(
                    command,
                    cwd=folder,
                    env={**os.environ, VARIABLE: f"{theirs.fileno()}:{os.getpid()}:{name}"},
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    # Not in the supervisor's group: a Ctrl-C must not end what a handler has
                    # started, because its job has until --drain to finish.
                    process_group=0,
                )
            except BaseException:
                self._socket.close()
                raise
        self._socket.setblocking(False)
        asyncio.get_running_loop().add_reader(self._socket, self._read)

    def __str__(self) -> str:
        return f"worker process {self.name} (pid {self._popen.pid})"

    @property
    def pid(self) -> int:
        """The process id."""
        return self._popen.pid

    @property
    def age_s(self) -> float:
        """Seconds since the process was started."""
        return time.monotonic() - self.started

    def ended(self) -> bool:
        """Return whether the process has ended. If so, its last reports have been passed on."""
        if self._popen.poll() is None:
            return False
        if self._socket.fileno() >= 0:
            self._read()
            self._close()
        return True

    @property
    def exit_code(self) -> int:
        """The exit code of a process that has ended, or minus the signal that killed it."""
        code = self._popen.returncode
        assert code is not None
        return code

    @property
    def ending(self) -> str:
        """How it ended, in words."""
        if self.exit_code >= 0:
            return f"exited with code {self.exit_code}"
        try:
            return f"was killed by {signal.Signals(-self.exit_code).name}"
        except ValueError:
            return f"was killed by signal {-self.exit_code}"

    def order(self, order: Order) -> None:
        """Order a process to stop. One that is not up yet gets SIGTERM: it has no jobs."""
        if not self.up:
            self._popen.terminate()
            return
        try:
            self._socket.send(f"{order}\n".encode())
        except OSError:
            pass  # it has ended

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self._popen.send_signal(number)

    def kill(self) -> None:
        """End it at once."""
        self._popen.kill()

    def _read(self) -> None:
        try:
            data = self._socket.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:  # the process has closed its end, or it is gone: SIGCHLD tells
            asyncio.get_running_loop().remove_reader(self._socket)
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            report = Report(line.decode())
            self.up = self.up or report is Report.UP
            self._on_report(self, report)

    def _close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()


# The seat of one worker process. Processes come and go; the seat remembers what went wrong.

_FIRST_DELAY_S = 0.5
_MAX_DELAY_S = 30.0
_STEADY_S = 60.0
"""A process that has lived this many seconds has not failed at its start: the delay is short
again."""


class Why(StrEnum):
    """Why a process that works is replaced."""

    RESTART = "restart"  # SIGHUP, or the code has changed
    RECYCLE = "recycle"  # --max-jobs or --max-memory


class Seat:
    """Holds one of the `--processes` worker processes, and the one that replaces it."""

    def __init__(self) -> None:
        self.process: WorkerProcess | None = None
        self.successor: WorkerProcess | None = None  # starts while `process` still works
        self.why: Why | None = None  # `process` is to be replaced
        self.shut_down = False  # an operator has stopped the worker, so the seat stays empty
        self.due = 0.0  # no process is started before (monotonic seconds)
        self._deaths = 0  # in a row

    @property
    def processes(self) -> list[WorkerProcess]:
        """The processes of this seat that are not about to end."""
        return [process for process in (self.process, self.successor) if process is not None]

    def failed(self, lived_s: float, now: float) -> float:
        """A process has died after `lived_s`. Returns the seconds until the next one may start."""
        self._deaths = 1 if lived_s >= _STEADY_S else self._deaths + 1
        delay_s = restart_delay_s(self._deaths)
        self.due = now + delay_s
        return delay_s

    def forgive(self) -> None:
        """Start the next process without a delay."""
        self.due, self._deaths = 0.0, 0


def restart_delay_s(deaths: int) -> float:
    """Seconds before a process is started again: 0.5 after the first death in a row, then 1, 2, 4
    and so on up to 30."""
    return min(_MAX_DELAY_S, _FIRST_DELAY_S * 2.0 ** min(deaths - 1, 30))
