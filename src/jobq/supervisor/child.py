"""The supervisor, seen by a worker process: reports, orders, and death together.

A worker process must not outlive its supervisor: nobody would stop or replace it. Two mechanisms
end it. On Linux the kernel sends SIGKILL when the parent dies (`prctl(PR_SET_PDEATHSIG)`), however
busy the process is. Everywhere, a thread reads the socket, whose other end closes with the
supervisor.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from typing import NoReturn

from jobq.supervisor.wire import VARIABLE, Order, Report

_PR_SET_PDEATHSIG = 1
"""From <sys/prctl.h>: the signal that this process gets when the thread that started it ends."""

Obey = Callable[[Order], None]


class Supervised:
    """What a worker process needs of its supervisor. `name` is the name of the worker."""

    def __init__(self, descriptor: int, name: str) -> None:
        self.name = name
        os.set_inheritable(descriptor, False)
        self._socket = socket.socket(fileno=descriptor)
        self._obey: Obey | None = None

    @classmethod
    def from_environment(cls) -> Supervised | None:
        """Return None if this process has no supervisor. Call it before the app is imported."""
        value = os.environ.pop(VARIABLE, None)
        if value is None:
            return None
        descriptor, supervisor, name = value.split(":", 2)
        supervised = cls(int(descriptor), name)
        die_with_parent(int(supervisor))
        threading.Thread(target=supervised.listen, name="jobq supervisor", daemon=True).start()
        return supervised

    def report(self, report: Report) -> None:
        """Tell the supervisor. Does nothing if it is gone: this process ends with it."""
        try:
            self._socket.sendall(f"{report}\n".encode())
        except OSError:
            pass

    def obey(self, obey: Obey) -> None:
        """Call `obey`, in the thread that listens, for each order from now on.

        The supervisor sends orders only to a process that has reported `up`. Before that, it sends
        SIGTERM.
        """
        self._obey = obey

    def listen(self) -> NoReturn:
        """Pass on orders until the supervisor ends, and then end this process."""
        rest = b""
        while data := self._read():
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                if self._obey is not None:
                    self._obey(Order(line.decode()))
        end_now()

    def _read(self) -> bytes:
        try:
            return self._socket.recv(1024)
        except OSError:
            return b""


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when the process `parent`, which started it, ends.

    If the parent has ended before the kernel was asked, no signal would come. So its pid is
    compared afterwards.
    """
    if sys.platform == "linux":
        # An error leaves the socket as the only sign. None is known: the arguments are constants.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        end_now()


def end_now() -> NoReturn:
    """End this process as SIGKILL from outside would. Its jobs run again when the leases expire."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("a process outlived SIGKILL")
