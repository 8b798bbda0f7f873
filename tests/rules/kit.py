"""What the rule tests share: a table to play scripts at."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from jobq.core.rules.clock import Anchor, steady
from jobq_conformance.kit import Desk, FakeClock, fresh_queue
from jobq_conformance.places import Fresh


class Table:
    """Plays scripts on one store."""

    def __init__(self, runner: asyncio.Runner, fresh: Fresh) -> None:
        self._runner, self._fresh = runner, fresh

    def play(self, script: Callable[[Desk], Awaitable[None]]) -> None:
        """Run the script at a fresh queue, with a clock that only the script moves."""
        self._runner.run(self._play(script))

    async def _play(self, script: Callable[[Desk], Awaitable[None]]) -> None:
        clock = FakeClock()
        async with self._fresh()(clock) as store:
            await script(Desk(store, fresh_queue(), clock))


class StoreTime:
    """The store's time, as core says it is, while the script moves the clock."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock, self._seen = clock, 0
        self._anchor: Anchor | None = None

    def now(self) -> int:
        """To be asked with every call of the store, since each of them may be the one that finds
        the clock set back.
        """
        self._seen, self._anchor = steady(self._clock.now_ms, self._seen, self._anchor)
        return self._seen
