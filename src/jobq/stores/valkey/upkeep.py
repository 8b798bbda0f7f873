"""`tick`: upkeep of all queues, in bounded steps."""

from __future__ import annotations

import logging
from collections import deque

from jobq.core.records.jobs import QueueName
from jobq.stores.valkey import keys
from jobq.stores.valkey.calls import Calls
from jobq.stores.valkey.flows import Flows
from jobq.stores.valkey.mail import Mail
from jobq.stores.valkey.partitions import Partitions
from jobq.stores.valkey.presence import Presence

log = logging.getLogger("jobq.valkey")


QUEUES = 500
"""Queues that one tick visits. A visit takes two calls of some 0.1 ms, also if there is nothing to
do."""


class Upkeep:
    """Visits all queues in rounds.

    A tick that reaches its limit, or has visited QUEUES of them, leaves the rest to the next one.
    """

    def __init__(
        self, calls: Calls, partitions: Partitions, mail: Mail, flows: Flows, presence: Presence
    ) -> None:
        self._calls = calls
        self._partitions = partitions
        self._mail = mail
        self._flows = flows
        self._presence = presence
        self._next: deque[QueueName] = deque()
        """Queues to visit next in this round."""
        self._cursor = 0
        """Where the list of queues continues after those. 0: a new round begins."""

    async def tick(self, *, limit: int = 500) -> int:
        """See LifecycleStore."""
        await self._presence.sweep()
        await self._read_on()
        steps = visited = 0
        while self._next and steps < limit and visited < QUEUES:
            queue = self._next.popleft()
            visited += 1
            steps += await self._visit(queue, limit - steps)
            if steps >= limit:
                self._next.append(queue)  # it may have more to do: others are first
            elif not self._next and self._cursor:
                await self._read_on()
        return limit if self._next or self._cursor else min(steps, limit)

    async def _read_on(self) -> None:
        """Read the next queues of the list, or the first ones in a new round."""
        while not self._next:
            self._cursor, found = await self._partitions.some_queues(self._cursor, QUEUES)
            self._next.extend(found)
            if not self._cursor:
                return

    async def _visit(self, queue: QueueName, limit: int) -> int:
        steps = 0
        prefixes = await self._partitions.prefixes(queue)
        for prefix in prefixes:
            if steps < limit:
                steps += await self._tick_at(prefix, limit - steps)
        if len(prefixes) > 1:
            await self._mail.pump(self._partitions.space.prefix(queue))
        return steps

    async def _tick_at(self, prefix: str, limit: int) -> int:
        steps, to_wake, messages, unread = await self._calls.fcall(
            "tick", prefix, self._calls.now(), limit
        )
        steps += await self._flows.settle_staged(prefix)
        queue = keys.queue_of(prefix)
        await self._mail.after(queue, prefix, to_wake=to_wake, messages=messages)
        if unread:
            log.error(
                "the event log of queue %r reached its hard cap: dropped %d events that a "
                "registered reader has not acknowledged; the reader finds a gap in their place",
                queue.queue,
                unread,
            )
        return int(steps)
