"""Says that the worker is there, and hears what an operator wishes of it."""

from __future__ import annotations

from collections.abc import Callable

from jobq.core.pace import Pace, stretch
from jobq.core.records import Wish, WorkerRecord
from jobq.engine.service import Service
from jobq.engine.settings import Settings
from jobq.stores.base import Store


class Pulse(Service):
    """Beats every few seconds with the worker as it is then."""

    name = "pulse"

    def __init__(
        self, store: Store, settings: Settings, pace: Pace, *, record: Callable[[], WorkerRecord], wish: Callable[[Wish], None]
    ) -> None:
        super().__init__()
        self._store = store
        self._settings = settings
        self._pace = pace
        self._record = record
        self._wish = wish

    async def tick(self) -> float:
        """One beat. The first of a large fleet says that it is there for as long as the next ones may take."""
        answer = await self._store.beat(self._record(), ttl_ms=self._ttl_ms)
        if stretch(answer.workers) > self._pace.stretch:
            self._pace.heard(answer.workers)
            await self._store.beat(self._record(), ttl_ms=self._ttl_ms)
        self._pace.heard(answer.workers)
        if answer.wish is not None:
            self._wish(answer.wish)
        return self._settings.beat_ms * self._pace.stretch / 1000

    @property
    def _ttl_ms(self) -> int:
        """A worker that missed three beats is gone."""
        return int(3 * self._settings.beat_ms * self._pace.stretch) + 1_000
