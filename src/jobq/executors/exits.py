"""Tells an event loop when a process has ended, without polling."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from contextlib import suppress


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
