"""Which workers are running, what operators ask of them, and which worker leads."""

from __future__ import annotations

import msgspec

from jobq.core.records.jobs import QueueName
from jobq.core.records.workers import Beat, WorkerRecord, WorkerRequest
from jobq.core.rules.fleet import Pace
from jobq.stores.valkey.calls import Calls
from jobq.stores.valkey.keys import Space
from jobq.stores.valkey.servers import Servers

WORKERS = 500
"""Workers that one tick looks at, about. It takes about a millisecond of the server."""


class Presence:
    """Announces workers and lists them."""

    def __init__(self, servers: Servers, calls: Calls, space: Space, pace: Pace) -> None:
        self._servers = servers
        self._calls = calls
        self._space = space
        self._pace = pace
        self._cursor = 0
        """Where the next sweep continues in the list of workers."""

    async def beat(self, worker: WorkerRecord, *, ttl_ms: int, displace: bool = False) -> Beat:
        """See PresenceStore."""
        request, workers, displaced = await self._calls.fcall(
            "beat",
            self._space.workers,
            self._calls.now(),
            worker.name,
            ttl_ms,
            msgspec.json.encode(worker),
            worker.incarnation,
            int(displace),
        )
        self._pace.heard(workers)
        return Beat(request.decode() or None, workers, bool(displaced))

    async def sign_off(self, worker: str, incarnation: str | None) -> bool:
        """Remove the worker. False if another incarnation has its name."""
        workers = self._space.workers
        if incarnation is None:
            await self._servers.command(workers, "HDEL", workers, worker)
            return True
        now = self._calls.now()
        return bool(await self._calls.fcall("sign_off", workers, now, worker, incarnation))

    async def workers(self, queue: QueueName | None = None) -> list[WorkerRecord]:
        """See PresenceStore."""
        found = [
            msgspec.json.decode(w, type=WorkerRecord)
            for w in await self._calls.fcall("workers", self._space.workers, self._calls.now())
        ]
        return sorted(
            (w for w in found if queue is None or queue in w.queues), key=lambda w: w.name
        )

    async def ask_worker(self, name: str, request: WorkerRequest) -> bool:
        """See PresenceStore."""
        now = self._calls.now()
        return bool(await self._calls.fcall("ask", self._space.workers, now, name, request))

    async def lead(self, name: str, *, who: str, ttl_ms: int) -> bool:
        """See PresenceStore."""
        key = self._space.leadership(name)
        return bool(await self._calls.fcall("lead", key, self._calls.now(), who, ttl_ms))

    async def sweep(self) -> None:
        """Remove workers that are gone, among the next WORKERS."""
        cursor = await self._calls.fcall(
            "sweep_workers", self._space.workers, self._calls.now(), self._cursor, WORKERS
        )
        self._cursor = int(cursor)
