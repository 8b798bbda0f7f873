"""Where jobs are: the prefixes of queues and their partitions, and the list of queues.

A handle asks for the number of partitions of a queue once and keeps it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from jobq.core.records.jobs import JobKey, QueueName
from jobq.stores.valkey import keys
from jobq.stores.valkey.keys import Space
from jobq.stores.valkey.servers import Servers


class Partition(NamedTuple):
    """A queue, or one partition of it. Tokens of leases from a partition end with `suffix`."""

    prefix: str
    queue: QueueName
    suffix: str


class Partitions:
    """The prefixes under which queues keep their jobs."""

    def __init__(self, servers: Servers, space: Space) -> None:
        self.space = space
        self.known: dict[QueueName, int] = {}
        """How many partitions a queue has, as far as this handle has asked."""
        self.registered: set[QueueName] = set()
        """Queues that this handle has put on the list of queues."""
        self._servers = servers

    async def count(self, queue: QueueName) -> int:
        """How many partitions a queue has."""
        found = self.known.get(queue)
        if found is None:
            prefix = self.space.prefix(queue)
            stored = await self._servers.command(
                prefix, "HGET", keys.settings(prefix), "partitions"
            )
            found = self.known[queue] = int(stored or 1)
        return found

    def forget(self, queue: QueueName) -> None:
        """Ask for the partitions of a queue again when they are next needed."""
        self.known.pop(queue, None)

    def forget_all(self) -> None:
        """The same for all queues."""
        self.known.clear()

    async def prefixes(self, queue: QueueName) -> list[str]:
        """The prefixes of a queue's jobs: one, or one per partition."""
        n = self.known.get(queue) or await self.count(queue)
        if n == 1:
            return [self.space.prefix(queue)]
        return [self.space.partition_prefix(queue, p) for p in range(n)]

    async def all_prefixes(self, queue: QueueName) -> list[str]:
        """The prefixes of a queue's jobs, then the one where the queue was declared."""
        return list(dict.fromkeys([*await self.prefixes(queue), self.space.prefix(queue)]))

    async def home(self, queue: QueueName) -> str:
        """The prefix of shard 0 of the event log, where operations on the queue are logged."""
        return (await self.prefixes(queue))[0]

    def prefix_of(self, queue: QueueName, id: str, key: str | None = None) -> str:
        """The prefix of a job, in a queue whose partitions are known."""
        n = self.known[queue]
        if n == 1:
            return self.space.prefix(queue)
        return self.space.partition_prefix(queue, keys.partition_of(key, id, n))

    async def prefixes_of(self, jobs: Sequence[JobKey]) -> dict[str, list[int]]:
        """The prefixes where jobs may be, with their positions in `jobs`.

        A job with a key may be in any partition: only its id is known here.
        """
        found: dict[str, list[int]] = {}
        for n, job in enumerate(jobs):
            for prefix in await self.prefixes(job.queue):
                found.setdefault(prefix, []).append(n)
        return found

    async def of_token(self, queue: QueueName, token: str) -> Partition:
        """The partition that granted a lease with this token."""
        if (self.known.get(queue) or await self.count(queue)) == 1:
            return Partition(self.space.prefix(queue), queue, "")
        suffix = token.rpartition("~")[2]
        partition = int(suffix) if suffix.isdigit() else 0
        return Partition(self.space.partition_prefix(queue, partition), queue, f"~{partition}")

    # ── the list of queues ────────────────────────────────────────────────────────────────────────

    async def register(self, queue: QueueName, *, again: bool = False) -> None:
        """Put a queue on the list of queues, before its first job: a tick must be able to find it.

        `again`: also if this handle has done so, because the queue may have been obliterated since.
        """
        if again or queue not in self.registered:
            await self._servers.command(
                self.space.queues, "SADD", self.space.queues, self.space.prefix(queue)
            )
            self.registered.add(queue)

    async def unregister(self, queue: QueueName) -> None:
        """Take an obliterated queue off the list, and forget what is known about it."""
        await self._servers.command(
            self.space.queues, "SREM", self.space.queues, self.space.prefix(queue)
        )
        await self._servers.command(
            self.space.scheduled, "ZREM", self.space.scheduled, self.space.prefix(queue)
        )
        self.registered.discard(queue)
        self.forget(queue)

    async def all_queues(self) -> list[QueueName]:
        """The queues on the list."""
        found = await self._servers.command(self.space.queues, "SMEMBERS", self.space.queues)
        return sorted(keys.queue_of(prefix.decode()) for prefix in found)

    async def queues_of(self, tenant: str) -> list[QueueName]:
        """The queues of a tenant. The names of others are only compared."""
        found = await self._servers.command(self.space.queues, "SMEMBERS", self.space.queues)
        own = self.space.prefix(QueueName(tenant, "")).removesuffix("}").encode()
        return sorted(keys.queue_of(prefix.decode()) for prefix in found if prefix.startswith(own))

    async def some_queues(self, cursor: int, count: int) -> tuple[int, list[QueueName]]:
        """About `count` queues of the list after a cursor, and the next cursor. 0 is the beginning
        and the end. A queue may be listed twice."""
        after, found = await self._servers.command(
            self.space.queues, "SSCAN", self.space.queues, cursor, "COUNT", count
        )
        return int(after), sorted({keys.queue_of(prefix.decode()) for prefix in found})
