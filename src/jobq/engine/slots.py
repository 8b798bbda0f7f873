"""Counts how many more jobs may run.

A slot is taken before a claim is sent. It is free again when its run is concluded and its handler
has returned.
"""

from __future__ import annotations

import asyncio


class Bell:
    """Wakes the task that waits for it.

    Ringing does nothing if no task waits. So check the condition first, then wait, with no await in
    between.
    """

    __slots__ = ("_future",)

    def __init__(self) -> None:
        self._future: asyncio.Future[None] | None = None

    def ring(self, *_: object) -> None:
        """Wake the waiting task."""
        future = self._future
        if future is not None and not future.done():
            future.set_result(None)

    async def wait(self, timeout: float | None = None) -> None:
        """Wait until the next ring, or for `timeout` seconds."""
        self._future = future = asyncio.get_running_loop().create_future()
        try:
            if timeout is None:
                await future
            else:
                await asyncio.wait([future], timeout=timeout)
        finally:
            self._future = None


class Slots:
    """The worker's concurrency, shared by its stations (one per store).

    A station that finds no free slot gets a share of those that come free. `free` is negative while
    more jobs run than `resize` allows.
    """

    __slots__ = ("_hungry", "free", "total")

    def __init__(self, total: int) -> None:
        self.total = total
        self.free = total
        self._hungry: set[Bell] = set()

    def take(self, bell: Bell, limit: int) -> int:
        """Take up to `limit` free slots, or a fair share of them while other stations wait.

        Returns how many were taken. If there is none, `bell` rings when one comes free.
        """
        hungry = self._hungry
        if self.free <= 0:
            hungry.add(bell)
            return 0
        if hungry:
            hungry.discard(bell)
        taken = min(limit, self.free if not hungry else max(1, self.free // (len(hungry) + 1)))
        self.free -= taken
        return taken

    def give(self, count: int) -> None:
        """Free `count` slots."""
        self.free += count
        if self._hungry and self.free > 0 and count:
            for bell in self._hungry:
                bell.ring()

    def resize(self, total: int) -> None:
        """Change the concurrency. If it is lower, runs that end give up their slots."""
        more, self.total = total - self.total, total
        self.give(more)
