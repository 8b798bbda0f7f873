"""How many more jobs may run. A slot is taken before a claim is sent and free when its run has really ended."""

from __future__ import annotations

import asyncio


class Bell:
    """Wakes the one who waits. Ringing with nobody waiting does nothing: look first, then wait, with no await between."""

    __slots__ = ("_future",)

    def __init__(self) -> None:
        self._future: asyncio.Future[None] | None = None

    def ring(self, *_: object) -> None:
        """Wake."""
        future = self._future
        if future is not None and not future.done():
            future.set_result(None)

    async def wait(self, timeout: float | None = None) -> None:
        """Until the next ring, or the timeout."""
        self._future = future = asyncio.get_running_loop().create_future()
        try:
            if timeout is None:
                await future
            else:
                await asyncio.wait([future], timeout=timeout)
        finally:
            self._future = None


class Slots:
    """The worker's concurrency, shared by its stations (one per store). Fair: who found none is left a share."""

    __slots__ = ("_hungry", "free", "total")

    def __init__(self, total: int) -> None:
        self.total = total
        self.free = total
        self._hungry: set[Bell] = set()

    def take(self, bell: Bell, most: int) -> int:
        """Take what is free up to `most`, or a fair share while others wait. With none, `bell` rings when one comes free."""
        hungry = self._hungry
        if not self.free:
            hungry.add(bell)
            return 0
        if hungry:
            hungry.discard(bell)
        taken = min(most, self.free if not hungry else max(1, self.free // (len(hungry) + 1)))
        self.free -= taken
        return taken

    def give(self, count: int) -> None:
        """Slots come free."""
        self.free += count
        if self._hungry and count:
            for bell in self._hungry:
                bell.ring()
