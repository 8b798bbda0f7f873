"""What the rule tests share: a table to play scripts at, and how many examples there are."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable

from hypothesis import HealthCheck, Phase, settings

from jobq.core.clock import Anchor, steady
from jobq_conformance.kit import Desk, FakeClock, fresh_queue
from jobq_conformance.places import Fresh

# JQ_EXAMPLES=1000 for a long search that shrinks what it finds; a run in CI is short and the same
# every time.
EXAMPLES = int(os.environ.get("JQ_EXAMPLES", "0"))


def examples(n: int) -> settings:
    """This many examples, unless a longer search is asked for."""
    phases = [Phase.explicit, Phase.generate, Phase.shrink]
    return settings(
        max_examples=EXAMPLES or n,
        deadline=None,
        database=None,
        derandomize=not EXAMPLES,
        phases=phases,
        suppress_health_check=list(HealthCheck),
    )


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
