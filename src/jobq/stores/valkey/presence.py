"""Which workers there are, what operators ask of them, and who holds an office."""

from __future__ import annotations

import msgspec

from jobq.core.records import QueueName
from jobq.core.workers import Beat, WorkerRecord, WorkerRequest
from jobq.stores.valkey.handle import Handle


class Presence(Handle):
    """`beat` and the others."""

    async def beat(self, worker: WorkerRecord, *, ttl_ms: int, displace: bool = False) -> Beat:
        """See PresenceStore."""
        args = (
            self.now(),
            worker.name,
            ttl_ms,
            msgspec.json.encode(worker),
            worker.incarnation,
            int(displace),
        )
        wish, workers, displaced = await self.fcall("beat", self.keys.workers, *args)
        self.pace.heard(workers)
        return Beat(wish.decode() or None, workers, bool(displaced))

    async def sign_off(self, worker: str, incarnation: str | None) -> bool:
        """Take the worker off the list; False if another incarnation has its name by now."""
        if incarnation is None:
            await self.servers.command(self.keys.workers, "HDEL", self.keys.workers, worker)
            return True
        return bool(
            await self.fcall("sign_off", self.keys.workers, self.now(), worker, incarnation)
        )

    async def workers(self, queue: QueueName | None = None) -> list[WorkerRecord]:
        """See PresenceStore."""
        found = [
            msgspec.json.decode(w, type=WorkerRecord)
            for w in await self.fcall("workers", self.keys.workers, self.now())
        ]
        return sorted(
            (w for w in found if queue is None or queue in w.queues), key=lambda w: w.name
        )

    async def ask_worker(self, name: str, request: WorkerRequest) -> bool:
        """See PresenceStore."""
        return bool(await self.fcall("ask", self.keys.workers, self.now(), name, request))

    async def lead(self, name: str, *, who: str, ttl_ms: int) -> bool:
        """See PresenceStore."""
        return bool(await self.fcall("lead", self.keys.office(name), self.now(), who, ttl_ms))
