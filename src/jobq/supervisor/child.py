"""The supervisor, seen by a worker process: reports, orders, and when to be replaced.

A worker process must not outlive its supervisor: nobody would stop or replace it. Two mechanisms
end it. On Linux the kernel sends SIGKILL when the parent dies (`prctl(PR_SET_PDEATHSIG)`), however
busy the process is. Everywhere, a thread reads the socket, whose other end closes with the
supervisor.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from jobq.supervisor.process import VARIABLE, Order, Report

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


# When a worker process wants to be replaced: after so many jobs, or above so much memory.

_MEASURE_S = 0.25
"""Seconds between two readings of the memory in use. Each takes about 10 µs."""


class Recycling:
    """Counts ended jobs. Returns once why the process should be replaced.

    Memory is compared when jobs end, so a process in which no job ends is not replaced.
    """

    def __init__(
        self,
        *,
        max_jobs: int | None = None,
        max_memory: int | None = None,
        memory: Callable[[], int] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`max_memory` is in bytes, and `memory` returns the bytes in use."""
        self._max_jobs = max_jobs
        self._max_memory = max_memory
        self._memory = memory or resident_bytes
        self._clock = clock
        self._jobs = 0
        self._measure_at = clock()
        self._reported = False

    def ended(self, jobs: int) -> str | None:
        """Count jobs that have ended. Returns the reason for a replacement, once."""
        self._jobs += jobs
        if self._reported:
            return None
        why = self._why()
        self._reported = why is not None
        return why

    def _why(self) -> str | None:
        if self._max_jobs is not None and self._jobs >= self._max_jobs:
            return f"it has run {self._jobs} jobs (--max-jobs {self._max_jobs})"
        if self._max_memory is not None and (now := self._clock()) >= self._measure_at:
            self._measure_at = now + _MEASURE_S
            if (used := self._memory()) > self._max_memory:
                return f"it uses {_mib(used)} of memory (--max-memory {_mib(self._max_memory)})"
        return None


def resident_bytes() -> int:
    """The resident memory of this process. Where the system only tells its peak, the peak."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
    return pages * os.sysconf("SC_PAGE_SIZE")


def _mib(size: int) -> str:
    return f"{size / 2**20:.0f} MiB"
