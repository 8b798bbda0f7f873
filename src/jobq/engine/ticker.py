"""Runs the store's upkeep: queues that no worker claims from, retention, the event log's end."""

from __future__ import annotations

from jobq.engine.leader import Leader
from jobq.engine.service import Service
from jobq.engine.settings import WorkerSettings
from jobq.stores.base import Store

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
