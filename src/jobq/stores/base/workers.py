"""Which workers there are, what operators ask of them, and which one leads."""

from __future__ import annotations

from typing import Protocol

from jobq.core.records.jobs import QueueName
from jobq.core.records.workers import Beat, WorkerRecord, WorkerRequest


class PresenceStore(Protocol):
    """Which workers there are, what operators ask of them, and which one leads."""

    async def beat(self, worker: WorkerRecord, *, ttl_ms: int, displace: bool = False) -> Beat:
        """Announce a worker for `ttl_ms`.

        Returns the last request for it, and the size of the fleet. One incarnation at a time owns a
        worker's name. If another one owns it and its last beat is not older than its ttl, nothing
        is stored and the reply is `displaced`; with `displace`, this incarnation takes the name. A
        new incarnation inherits no request. The size is never less than the number of live workers;
        a dead one counts until a tick.
        """
        ...

    async def retire(self, worker: str, *, incarnation: str | None = None) -> None:
        """Remove a worker: it is no longer listed, and no work wakes it. Its leases expire.

        With `incarnation`, only if that incarnation still owns the name.
        """
        ...

    async def workers(self, queue: QueueName | None = None) -> list[WorkerRecord]:
        """Workers whose last beat is not older than its ttl, by name: of one queue, or all."""
        ...

    async def ask_worker(self, name: str, request: WorkerRequest) -> bool:
        """Leave a request for a worker. False if there is no such worker.

        Every beat of the worker returns the request until another one replaces it, so a lost reply
        does not lose it.
        """
        ...

    async def lead(self, name: str, *, who: str, ttl_ms: int) -> bool:
        """Become or stay the leader of `name` for `ttl_ms`. True for one `who` at a time."""
        ...
