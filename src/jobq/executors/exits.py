"""Tells an event loop that a process has ended, without polling, and reports how."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress

import msgspec

from jobq.core.records.jobs import AnyOutcome


class Exit:
    """Watches a child of this process, and calls `on_exit` when it has ended.

    The process is not waited for: its exit status is still to be read.
    """

    def __init__(self, pid: int, on_exit: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_exit = on_exit
        try:
            self._pidfd: int | None = os.pidfd_open(pid)
        except (AttributeError, OSError):  # not on this system: a thread waits
            self._pidfd = None
            threading.Thread(
                target=self._wait, args=(pid,), name=f"jobq exit of {pid}", daemon=True
            ).start()
        else:
            self._loop.add_reader(self._pidfd, self._readable)

    def _readable(self) -> None:
        self.close()
        self._on_exit()

    def close(self) -> None:
        """Stop watching."""
        if self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None

    def _wait(self, pid: int) -> None:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._on_exit)


# How a run in another process ends, as its executor reports it to the engine.


class Interrupted(msgspec.Struct, frozen=True, gc=False):
    """The handler was asked to stop, and stopped."""


class Died(msgspec.Struct, frozen=True, gc=False):
    """The process died. `status` is its exit code, or a signal's number, negative.

    With `killed`, the worker killed it, because it went on after it was asked to stop.
    """

    status: int
    killed: bool = False
    begun: bool = True  # False: it died before it began the job
    why: str | None = None  # if permissions, or what it sent to the worker, are the cause

    @property
    def asked(self) -> bool:
        """Whether it died because its worker asked it to stop, or killed it."""
        return self.killed or self.status == -signal.SIGTERM

    def __str__(self) -> str:
        if self.why is not None:
            return self.why
        if self.status >= 0:
            return f"the process of the job ended with exit code {self.status}"
        try:
            name = signal.Signals(-self.status).name
        except ValueError:
            name = f"signal {-self.status}"
        hint = " (out of memory?)" if -self.status == signal.SIGKILL else ""
        return f"the process of the job was killed by {name}{hint}"


Ended = AnyOutcome | Interrupted | Died
