"""Says that the worker is there, and hears what an operator wishes of it."""

from __future__ import annotations

from collections.abc import Callable

from jobq.core.records import Wish, WorkerRecord
from jobq.engine.service import Service
from jobq.engine.settings import Settings
from jobq.stores.base import Store


class Pulse(Service):
    """Beats every few seconds with the worker as it is then."""

    name = "pulse"

    def __init__(
        self, store: Store, settings: Settings, *, record: Callable[[], WorkerRecord], wish: Callable[[Wish], None]
    ) -> None:
        super().__init__()
        self._store = store
        self._settings = settings
        self._record = record
        self._wish = wish

    async def tick(self) -> float:
        """One beat."""
        wish = await self._store.beat(self._record(), ttl_ms=self._settings.beat_ttl_ms)
        if wish is not None:
            self._wish(wish)
        return self._settings.beat_ms / 1000
