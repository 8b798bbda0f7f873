"""The store on Valkey or Redis: all groups of calls together, opening, closing and upkeep.

What an acknowledged call survives is decided by the server: with `appendfsync always` a crash of the server, with
`everysec` all but its last second, with replicas and `?wait=1` a failover. docs/guide/valkey.md says it in full.
"""

from __future__ import annotations

import asyncio
import logging
from types import TracebackType
from typing import Self

from jobq.errors import ConfigError
from jobq.stores.base import Clock
from jobq.stores.valkey import keys, layout_version
from jobq.stores.valkey.holds import Holds
from jobq.stores.valkey.hot import HotCalls
from jobq.stores.valkey.listen import Listen
from jobq.stores.valkey.operators import Operators
from jobq.stores.valkey.reads import Reads
from jobq.stores.valkey.schedules import Schedules

log = logging.getLogger("jobq.valkey")


class ValkeyStore(HotCalls, Listen, Operators, Holds, Schedules, Reads):
    """See `jobq.stores.base.Store`."""

    lanes = 2  # the server works while we do

    def __init__(self, url: str, clock: Clock | None = None) -> None:
        super().__init__(url, clock)
        self._tick_from = 0

    async def migrate(self) -> None:
        """Connect, load the function library, and refuse servers that may lose jobs silently."""
        if not self._migrated:
            try:
                await self.servers.check()
                await self._stamp()
            except ConfigError:
                await self.servers.aclose()
                raise
            self._migrated = True

    async def _stamp(self) -> None:
        """Write the layout of a new store, or of one that jobq 0.1 wrote."""
        key = self.keys.layout
        if await self.servers.command(key, "GET", key) is not None:
            return
        queues = await self.servers.command(self.keys.queues, "SCARD", self.keys.queues)
        workers = await self.fcall("workers", self.keys.workers, self.now())
        layout_version.check_migration(self.url, queues, workers)
        await self.servers.command(key, "SET", key, layout_version.STAMP, "NX")

    async def aclose(self) -> None:
        """See LifecycleStore."""
        await self.close_sleep()
        await self.close_listen()
        await self.servers.aclose()

    async def retire(self, worker: str, *, incarnation: str | None = None) -> None:
        """See PresenceStore."""
        if await self.sign_off(worker, incarnation):
            await self.rise(worker)

    async def tick(self, *, limit: int = 500) -> int:
        """See LifecycleStore."""
        await self.fcall("sweep_workers", self.keys.workers, self.now())
        queues = await self.all_queues()
        if not queues:
            return 0
        first = self._tick_from % len(queues)
        steps = 0
        for n, queue in enumerate((*queues[first:], *queues[:first])):
            if steps >= limit:
                self._tick_from = first + n - 1  # the next tick begins where this one stopped
                break
            prefixes = await self.prefixes(queue)
            for prefix in prefixes:
                if steps < limit:
                    steps += await self._tick_at(prefix, limit - steps)
            if len(prefixes) > 1:
                await self.pump(self.keys.prefix(queue))
        return min(steps, limit)

    async def _tick_at(self, prefix: str, limit: int) -> int:
        steps, to_wake, messages, unread = await self.fcall("tick", prefix, self.now(), limit)
        steps += await self.settle_flows(prefix)
        queue = keys.queue_of(prefix)
        await self.after(queue, prefix, to_wake=to_wake, messages=messages)
        if unread:
            log.error(
                "the event log of queue %r reached its hard cap: %d events were dropped that a registered reader had not "
                "acknowledged; a gap stands in their place",
                queue.queue,
                unread,
            )
        return int(steps)

    async def __aenter__(self) -> Self:
        await self.migrate()
        return self

    async def __aexit__(
        self, t: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        await asyncio.shield(self.aclose())
