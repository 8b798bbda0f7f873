"""Which queues may have a due schedule, so that a scheduler need not ask all of them every second.

A sorted set has the queues with schedules, each with a time before which none of its schedules is
due. The set is in another slot than the queues, so it is only a hint, and no call changes both at
once. These orders make sure that no time is missed:

- A schedule is stored first. Then the time of its queue is lowered.
- A queue that is asked first gets a later time. Then it is asked, and then its time is lowered to
  that of its next schedule.

So a schedule that is stored while its queue is asked is found, or lowers the time after that.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence

from jobq.core.records import QueueName
from jobq.stores.valkey import keys
from jobq.stores.valkey.calls import Calls
from jobq.stores.valkey.partitions import Partitions
from jobq.stores.valkey.servers import Servers
from jobq.stores.valkey.wire import Argument, Reply

_LATER_MS = 30_000
"""Milliseconds until a queue is asked again at the latest. A scheduler that dies between its two
steps delays a schedule by no more than this."""
_REBUILD_S = 300.0
"""Seconds after which a handle asks all queues whether they have schedules. Older releases do not
write the set."""
_AT_ONCE = 100
"""Queues that are asked concurrently."""
_MOST = 1_000
"""Queues that one look returns."""


class ScheduledQueues:
    """The set of queues with schedules."""

    def __init__(self, servers: Servers, calls: Calls, partitions: Partitions) -> None:
        self._servers = servers
        self._calls = calls
        self._partitions = partitions
        self._key = partitions.space.scheduled
        self._rebuild_at = 0.0  # monotonic clock

    async def lower(self, queue: QueueName, next_ms: int) -> None:
        """A schedule of the queue is due at this time, or earlier."""
        prefix = self._partitions.space.prefix(queue)
        # Without LT, which Redis has since 6.2, a time could become later here.
        await self._command("ZADD", self._key, "LT", next_ms, prefix)

    async def remove(self, queue: QueueName) -> None:
        """The queue is gone."""
        await self._command("ZREM", self._key, self._partitions.space.prefix(queue))

    async def due(self) -> list[QueueName]:
        """The queues that may have a due schedule. The caller asks them, then calls `asked`."""
        if time.monotonic() >= self._rebuild_at:
            await self._rebuild()
            self._rebuild_at = time.monotonic() + _REBUILD_S
        now = await self._now()
        found = await self._command("ZRANGEBYSCORE", self._key, "-inf", now, "LIMIT", 0, _MOST)
        if found:
            later = [each for prefix in found for each in (now + _LATER_MS, prefix)]
            await self._command("ZADD", self._key, "XX", *later)
        return [keys.queue_of(prefix.decode()) for prefix in found]

    async def asked(self, queues: Sequence[QueueName]) -> None:
        """These queues were asked: store when their next schedules are due."""
        now = await self._now() if queues else 0
        for some in _parts(queues):
            times = await asyncio.gather(*(self._next_ms(queue, now) for queue in some))
            lowered = [
                each
                for queue, next_ms in zip(some, times, strict=True)
                if next_ms is not None
                for each in (next_ms, self._partitions.space.prefix(queue))
            ]
            if lowered:
                await self._command("ZADD", self._key, "LT", *lowered)

    async def _next_ms(self, queue: QueueName, now: int) -> int | None:
        """When a schedule of the queue may be due next; None: it has none.

        A schedule without a time may get one when its job ends, and nobody tells. Its queue is
        asked every time."""
        prefix = self._partitions.space.prefix(queue)
        due, states = keys.schedules_due(prefix), keys.schedule_states(prefix)
        first, timed, stored = await asyncio.gather(
            self._servers.command(prefix, "ZRANGE", due, 0, 0, "WITHSCORES"),
            self._servers.command(prefix, "ZCARD", due),
            self._servers.command(prefix, "HLEN", states),
        )
        if timed < stored:
            return now
        return int(float(first[1])) if first else None

    async def _rebuild(self) -> None:
        """Enter all queues that have schedules, to be asked now."""
        for some in _parts(await self._partitions.all_queues()):
            prefixes = [self._partitions.space.prefix(queue) for queue in some]
            stored = await asyncio.gather(
                *(
                    self._servers.command(prefix, "HLEN", keys.schedule_states(prefix))
                    for prefix in prefixes
                )
            )
            entries = [
                each
                for prefix, number in zip(prefixes, stored, strict=True)
                if number
                for each in (0, prefix)
            ]
            if entries:
                await self._command("ZADD", self._key, *entries)

    async def _now(self) -> int:
        """The injected clock's time, or that of the server with the set."""
        given = self._calls.now()
        if given != "":
            return int(given)
        seconds, micros = await self._command("TIME")
        return int(seconds) * 1000 + int(micros) // 1000

    async def _command(self, *command: Argument) -> Reply:
        return await self._servers.command(self._key, *command)


def _parts(queues: Sequence[QueueName]) -> Iterator[Sequence[QueueName]]:
    for start in range(0, len(queues), _AT_ONCE):
        yield queues[start : start + _AT_ONCE]
