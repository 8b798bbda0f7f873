"""What every group of calls of the store stands on: the servers, the clock, and what is known about queues."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import NoReturn

from jobq.core import refusals
from jobq.core.pace import Pace
from jobq.core.records import JobKey, JobRecord, QueueName
from jobq.stores.base import Clock
from jobq.stores.valkey import keys
from jobq.stores.valkey.address import parse
from jobq.stores.valkey.functions import function
from jobq.stores.valkey.servers import Servers, servers_at
from jobq.stores.valkey.wire import Argument, Reply, ServerError


class Parted(Exception):
    """The queue has other partitions than this handle knew: ask again."""


class Handle:
    """A handle's own things. The groups of calls are classes on top of it, and `store.Store` is all of them."""

    def __init__(self, url: str, clock: Clock | None) -> None:
        self.address = parse(url)
        self.url = self.address.shown
        self._clock = clock
        self.servers: Servers = servers_at(self.address)
        self.keys = keys.Space(self.address.prefix)
        self.channel = self.keys.handle_channel(os.urandom(9).hex())
        self._partitions: dict[QueueName, int] = {}
        self._met: set[QueueName] = set()
        self.expected: dict[tuple[QueueName, str], set[asyncio.Queue[JobRecord | None]]] = {}
        """Jobs that are put through this handle, and who wants to hear of their ends (see `Pipelined.expect`)."""
        self._migrated = False
        self.pace = Pace()

    def now(self) -> str | int:
        """What the functions are told: the injected clock's time, or nothing, and the server looks at its own."""
        return "" if self._clock is None else self._clock()

    async def fcall(self, name: str, key: str, *args: Argument, confirmed: bool = False) -> Reply:
        """Call a function; errors of the library become exceptions of `jobq.errors`."""
        return await self.fcall_list(function(name), key, args, confirmed=confirmed)

    async def fcall_list(
        self, name: bytes, key: str, args: Sequence[Argument], *, confirmed: bool = False
    ) -> Reply:
        """The same, for the hot paths."""
        try:
            return await self.servers.fcall(name, key, args, confirmed=confirmed)
        except ServerError as e:
            _raise(e, keys.queue_of(key) if "{" in key and ":" in key else None)

    # ── where jobs are ────────────────────────────────────────────────────────────────────────────

    async def partitions(self, queue: QueueName) -> int:
        """How many partitions a queue has; asked for once."""
        found = self._partitions.get(queue)
        if found is None:
            prefix = self.keys.prefix(queue)
            stored = await self.servers.command(prefix, "HGET", keys.settings(prefix), "partitions")
            found = self._partitions[queue] = int(stored or 1)
        return found

    async def prefixes(self, queue: QueueName) -> list[str]:
        """Where its jobs are: one prefix, or one per partition."""
        n = self._partitions.get(queue) or await self.partitions(queue)
        return (
            [self.keys.prefix(queue)]
            if n == 1
            else [self.keys.partition_prefix(queue, p) for p in range(n)]
        )

    async def home(self, queue: QueueName) -> str:
        """Where shard 0 of its log is: there it is told what is done to the queue as a whole."""
        return (await self.prefixes(queue))[0]

    def place(self, queue: QueueName, id: str, key: str | None = None) -> str:
        """Where a job is, in a queue whose partitions are known."""
        n = self._partitions[queue]
        return (
            self.keys.prefix(queue)
            if n == 1
            else self.keys.partition_prefix(queue, keys.partition_of(key, id, n))
        )

    async def places(self, jobs: Sequence[JobKey]) -> dict[str, list[int]]:
        """Where to look for jobs, as places in the list. One with a key may be in any partition: only its id is known here."""
        found: dict[str, list[int]] = {}
        for n, job in enumerate(jobs):
            for prefix in await self.prefixes(job.queue):
                found.setdefault(prefix, []).append(n)
        return found

    async def meet(self, queue: QueueName, *, again: bool = False) -> None:
        """Put a queue on the list of queues. Before its first job: a tick must be able to find it. `again`: it may have been
        obliterated since."""
        if again or queue not in self._met:
            await self.servers.command(
                self.keys.queues, "SADD", self.keys.queues, self.keys.prefix(queue)
            )
            self._met.add(queue)

    async def all_queues(self) -> list[QueueName]:
        """The queues there are."""
        found = await self.servers.command(self.keys.queues, "SMEMBERS", self.keys.queues)
        return sorted(keys.queue_of(prefix.decode()) for prefix in found)


def _raise(error: ServerError, queue: QueueName | None) -> NoReturn:
    """An error of the library, in the words of `jobq.errors`; anything else is a bug and shows as it is."""
    text = str(error)
    if not text.startswith("JOBQ "):
        raise error
    name = queue.queue if queue else "?"
    _, word, *rest = text.split(" ", 3)
    if word == "ACTIVE":
        raise refusals.has_active_jobs(name, int(rest[0]))
    if word == "DECLARE" and rest[0] == "partitions" and queue is not None:
        raise refusals.other_partitions(queue, int(rest[1]))
    if word == "PARTED":
        raise Parted(name)
    raise Refused(word, rest)


class Refused(Exception):
    """Refused by a function; the caller knows what the words mean."""

    def __init__(self, word: str, rest: list[str]) -> None:
        super().__init__(word, *rest)
        self.word, self.rest = word, rest
