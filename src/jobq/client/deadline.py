"""When a wait for a job ends: at its time, or when the queue it waits on is closed."""

from __future__ import annotations

import asyncio
from weakref import WeakSet

LOOK_AGAIN = 5.0
"""Seconds after which a wait looks without having been told. Told, it looks at once."""


class Deadline:
    """When a wait ends. None: never. `Deadlines` makes those that a close ends."""

    __slots__ = ("__weakref__", "_at", "closed", "limit", "seconds")

    def __init__(self, ms: int | None) -> None:
        self.seconds = None if ms is None else ms / 1000
        self.closed = False
        self._at = (
            None if self.seconds is None else asyncio.get_running_loop().time() + self.seconds
        )
        self.limit: asyncio.Timeout | None = (
            None  # the timeout of a wait under way, which a close cuts short
        )

    @property
    def left(self) -> float:
        """Seconds until then, at most until one should look again; 0 or less: the wait is over."""
        if self.closed:
            return 0.0
        if self._at is None:
            return LOOK_AGAIN
        return min(LOOK_AGAIN, self._at - asyncio.get_running_loop().time())

    def close(self) -> None:
        """The queue is closed: the wait is over now."""
        self.closed = True
        if self.limit is not None:
            self.limit.reschedule(0.0)


class Deadlines:
    """Those of one queue that are not over, by event loop."""

    def __init__(self) -> None:
        self._open: dict[asyncio.AbstractEventLoop, WeakSet[Deadline]] = {}

    def new(self, ms: int | None) -> Deadline:
        """One in the running event loop."""
        deadline = Deadline(ms)
        self._open.setdefault(asyncio.get_running_loop(), WeakSet()).add(deadline)
        return deadline

    def close(self, loop: asyncio.AbstractEventLoop) -> None:
        """End the waits in an event loop; called there."""
        for deadline in self._open.pop(loop, ()):
            deadline.close()
