"""One worker process, seen by the supervisor."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from jobq.supervisor.wire import VARIABLE, Order, Report


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
