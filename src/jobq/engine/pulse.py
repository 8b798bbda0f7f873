"""Announces the worker to its store, and receives operators' requests.

It also learns here if another worker has taken the worker's name.
"""

from __future__ import annotations

from collections.abc import Callable

from jobq.core.records.workers import WorkerRecord, WorkerRequest
from jobq.core.rules.fleet import Pace, stretch
from jobq.engine.identity import WorkerSettings
from jobq.engine.service import Service
from jobq.stores.base import Store

_SHOW_S = 0.2
"""Seconds from a request to the next beat, which shows operators the worker's new state."""


class Pulse(Service):
    """Sends the worker's record to the store every few seconds."""

    name = "pulse"

    def __init__(
        self,
        store: Store,
        settings: WorkerSettings,
        pace: Pace,
        *,
        record: Callable[[], WorkerRecord],
        on_request: Callable[[WorkerRequest], None],
        displaced: Callable[[], None],
    ) -> None:
        super().__init__()
        self._store = store
        self._settings = settings
        self._pace = pace
        self._record = record
        self._on_request = on_request
        self._displaced = displaced
        # A request stays in the store until another replaces it. Each is passed on once.
        self._heard: WorkerRequest | None = None

    async def tick(self) -> float:
        """Send one beat.

        When the fleet has grown, a second beat follows at once: the next one comes later than the
        first beat's ttl allows for.
        """
        reply = await self._store.beat(self._record(), ttl_ms=self._ttl_ms)
        if reply.displaced:
            self._displaced()
            return self._rest_s
        if stretch(reply.workers) > self._pace.stretch:
            self._pace.heard(reply.workers)
            await self._store.beat(self._record(), ttl_ms=self._ttl_ms)
        self._pace.heard(reply.workers)
        if reply.request is not None and reply.request != self._heard:
            self._heard = reply.request
            self._on_request(reply.request)
            return min(_SHOW_S, self._rest_s)
        return self._rest_s

    @property
    def _rest_s(self) -> float:
        return self._settings.beat_ms * self._pace.stretch / 1000

    @property
    def _ttl_ms(self) -> int:
        return ttl_ms(self._settings, self._pace)


def ttl_ms(settings: WorkerSettings, pace: Pace) -> int:
    """Return how long a beat is valid: a worker that misses three beats counts as dead."""
    return int(3 * settings.beat_ms * pace.stretch) + 1_000
