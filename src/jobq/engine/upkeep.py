"""The upkeep of a store: one worker is elected as its leader, and only the leader runs it.

Without a leader, a thousand workers would tick a thousand times.
"""

from __future__ import annotations

import random
import time

from jobq.core.rules.fleet import Pace
from jobq.engine.identity import WorkerSettings
from jobq.engine.service import Service
from jobq.stores.base import Store

UPKEEP = "upkeep"
"""The leadership of a store's upkeep and schedules, of workers and of servers."""


class Leader:
    """Asks the store for the leadership `name`, and remembers the reply.

    The leader renews its leadership after a third of `ttl_ms`. Other workers ask again after about
    half of it, or later in a large fleet.
    """

    def __init__(
        self, store: Store, name: str, *, who: str, ttl_ms: int, pace: Pace | None = None
    ) -> None:
        self._store = store
        self._name = name
        self._who = who
        self._ttl_ms = ttl_ms
        self._pace = pace or Pace()
        self._held = False
        self._ask_at = 0.0

    async def leads(self) -> bool:
        """Return whether this worker leads now."""
        now = time.monotonic()
        if now >= self._ask_at:
            self._held = False  # also if asking fails
            self._held = await self._store.lead(self._name, who=self._who, ttl_ms=self._ttl_ms)
            rest = self._ttl_ms / 1000
            pause = rest / 3 if self._held else rest * self._pace.stretch * random.uniform(0.4, 0.6)
            self._ask_at = now + pause
        return self._held

    async def resign(self) -> None:
        """Give up the leadership, so that another worker need not wait until it expires."""
        if self._held:
            self._held = False
            self._ask_at = float("inf")
            await self._store.lead(self._name, who=self._who, ttl_ms=1)


# Runs the store's upkeep: queues that no worker claims from, retention, the event log's end.

_STEPS = 500
"""Steps of upkeep per call. Bounded, so that one call does not block claims for long."""


class Ticker(Service):
    """Calls `store.tick` every few seconds if this worker leads, without a pause if more is due."""

    name = "upkeep"

    def __init__(self, store: Store, leader: Leader, settings: WorkerSettings) -> None:
        super().__init__()
        self._store = store
        self._leader = leader
        self._settings = settings

    async def tick(self) -> float:
        """Run one bounded pass."""
        if await self._leader.leads() and await self._store.tick(limit=_STEPS) >= _STEPS:
            return 0.0
        return self._settings.tick_ms / 1000
