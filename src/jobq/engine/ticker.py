"""Upkeep for what nobody's claim takes care of: queues without workers, retention, the event log's end."""

from __future__ import annotations

from jobq.engine.leader import Leader
from jobq.engine.service import Service
from jobq.engine.settings import WorkerSettings
from jobq.stores.base import Store

_STEPS = 500


class Ticker(Service):
    """`store.tick` every few seconds, by one worker of the store; without a rest while there is more to do."""

    name = "upkeep"

    def __init__(self, store: Store, leader: Leader, settings: WorkerSettings) -> None:
        super().__init__()
        self._store = store
        self._leader = leader
        self._settings = settings

    async def tick(self) -> float:
        """One bounded pass."""
        if await self._leader.leads() and await self._store.tick(limit=_STEPS) >= _STEPS:
            return 0.0
        return self._settings.tick_ms / 1000
