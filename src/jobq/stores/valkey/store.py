"""The store on Valkey or Redis: puts its parts together, opens and closes them.

The server decides what an acknowledged call survives: with `appendfsync always` a crash of the
server, with `everysec` a crash except for about its last second, with replicas and `?wait=1` a
failover. docs/guide/valkey.md has the details.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from jobq.core.rules.fleet import Pace
from jobq.errors import ConfigError
from jobq.stores.base import Clock
from jobq.stores.valkey.address import parse
from jobq.stores.valkey.calls import Calls
from jobq.stores.valkey.commands import Commands, Locks
from jobq.stores.valkey.flows import Edges, Flows
from jobq.stores.valkey.keys import Space
from jobq.stores.valkey.listener import Listener
from jobq.stores.valkey.mail import Mail
from jobq.stores.valkey.migration import Migration
from jobq.stores.valkey.partitions import Partitions
from jobq.stores.valkey.presence import Presence
from jobq.stores.valkey.puts import Puts, Restores
from jobq.stores.valkey.queues import Holds, Purges, Queues
from jobq.stores.valkey.reads import EventReads, Reads
from jobq.stores.valkey.schedules import Schedules
from jobq.stores.valkey.servers import servers_at
from jobq.stores.valkey.settling import Exchange, Leases, Settling
from jobq.stores.valkey.sleepers import Sleepers
from jobq.stores.valkey.upkeep import Upkeep


class ValkeyStore:
    """See `jobq.stores.base.Store`.

    Each part of the store has one job and is given the parts it needs. The calls of the contract
    are the methods of the parts, so a call costs no extra step.
    """

    lanes = 2  # the server works on one exchange while the worker runs jobs of the other

    def __init__(self, url: str, clock: Clock | None = None) -> None:
        address = parse(url)
        self.url = address.shown
        self._clock = clock
        self._migrated = False
        pace = Pace()
        self.servers = servers = servers_at(address)
        self.calls = calls = Calls(servers, clock)
        self.partitions = partitions = Partitions(servers, Space(address.prefix))
        self._migration = Migration(self.url, servers, calls, partitions.space)
        mail = Mail(servers, calls, partitions)
        edges = Edges(calls, partitions)
        self.flows = flows = Flows(calls, partitions, mail, edges)
        self._sleepers = sleepers = Sleepers(servers, calls, partitions)
        self._listener = listener = Listener(servers, calls, partitions, pace)
        self._presence = presence = Presence(servers, calls, partitions.space, pace)

        puts = Puts(calls, partitions, mail, edges, flows, listener)
        self.put, self.prepare = puts.put, puts.prepare
        exchange = Exchange(calls, partitions, mail, edges, sleepers)
        self.settle = Settling(servers, calls, partitions, sleepers, exchange).settle
        leases = Leases(calls, partitions)
        self.extend, self.note = leases.extend, leases.note
        self.sleep = sleepers.sleep
        self.listen, self.expect = listener.listen, listener.expect

        self.alter = Commands(calls, partitions, mail).alter
        queues = Queues(calls, partitions, mail)
        self.declare, self.set_limits = queues.declare, queues.set_limits
        self.pause, self.resume = queues.pause, queues.resume
        purges = Purges(calls, partitions, mail)
        self.purge_pending, self.purge_ended = purges.purge_pending, purges.purge_ended
        self.obliterate = purges.obliterate
        self.restore = Restores(calls, partitions).restore
        holds = Holds(calls, partitions, mail)
        self.hold, self.release_hold, self.holds = holds.hold, holds.release_hold, holds.holds

        locks = Locks(calls, partitions, mail)
        self.find_lock, self.release_lock = locks.find_lock, locks.release_lock

        schedules = Schedules(servers, calls, partitions, mail)
        self.put_schedule, self.drop_schedule = schedules.put_schedule, schedules.drop_schedule
        self.pause_schedule, self.fire = schedules.pause_schedule, schedules.fire
        self.list_schedules = schedules.list_schedules

        reads = Reads(calls, partitions, presence)
        self.get, self.find, self.skip = reads.get, reads.find, reads.skip
        self.logs = reads.logs
        self.count, self.stats, self.metrics = reads.count, reads.stats, reads.metrics
        self.queues = reads.queues
        events = EventReads(servers, calls, partitions)
        self.read_events, self.ack_events = events.read_events, events.ack_events
        self.readers, self.remove_reader = events.readers, events.remove_reader

        self.beat, self.workers = presence.beat, presence.workers
        self.ask_worker, self.lead = presence.ask_worker, presence.lead
        self.tick = Upkeep(calls, partitions, mail, flows, presence).tick

    async def retire(self, worker: str, *, incarnation: str | None = None) -> None:
        """See PresenceStore."""
        if await self._presence.sign_off(worker, incarnation):
            await self._sleepers.stop_looking(worker)

    async def migrate(self) -> None:
        """Connect, load the function library, and refuse servers that may lose jobs silently."""
        if not self._migrated:
            try:
                await self.servers.check()
                await self._migration.run()
            except ConfigError:
                await self.servers.aclose()
                raise
            self._migrated = True

    async def aclose(self) -> None:
        """See LifecycleStore."""
        await self._sleepers.aclose()
        await self._listener.aclose()
        await self.servers.aclose()

    async def __aenter__(self) -> Self:
        await self.migrate()
        return self

    async def __aexit__(
        self, t: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        await asyncio.shield(self.aclose())
