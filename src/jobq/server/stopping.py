"""Ends the calls of a service that would stay open, when the server stops."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

from jobq.client.deadline import Deadline, Deadlines
from jobq.errors import QueueClosed


class Stopping:
    """Whether the server stops. All waits of a service know it."""

    def __init__(self) -> None:
        self._stopped = False
        self._bells: set[asyncio.Event] = set()
        self._deadlines = Deadlines()

    def deadline(self, ms: int | None) -> Deadline:
        """A deadline of a wait in the running event loop. It ends when the server stops."""
        deadline = self._deadlines.new(ms)
        if self._stopped:
            deadline.close()
        return deadline

    @contextlib.contextmanager
    def wakes(self, bell: asyncio.Event) -> Iterator[None]:
        """Inside the context, the end of the server rings this bell."""
        self._bells.add(bell)
        try:
            if self._stopped:
                bell.set()
            yield
        finally:
            self._bells.discard(bell)

    def check(self) -> None:
        """QueueClosed if the server stops."""
        if self._stopped:
            raise QueueClosed("the server stops: continue at another one")

    def stop(self) -> None:
        """End all waits. Call this in their event loop."""
        self._stopped = True
        for bell in self._bells:
            bell.set()
        self._deadlines.close(asyncio.get_running_loop())
