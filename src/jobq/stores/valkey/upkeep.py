"""`tick`: upkeep of all queues, in bounded steps."""

from __future__ import annotations

import logging

from jobq.stores.valkey import keys
from jobq.stores.valkey.calls import Calls
from jobq.stores.valkey.flows import Flows
from jobq.stores.valkey.mail import Mail
from jobq.stores.valkey.places import Places
from jobq.stores.valkey.presence import Presence

log = logging.getLogger("jobq.valkey")


class Upkeep:
    """Visits queues in turn. A tick that reaches its limit leaves the rest to the next one."""

    def __init__(
        self, calls: Calls, places: Places, mail: Mail, flows: Flows, presence: Presence
    ) -> None:
        self._calls = calls
        self._places = places
        self._mail = mail
        self._flows = flows
        self._presence = presence
        self._next_queue = 0

    async def tick(self, *, limit: int = 500) -> int:
        """See LifecycleStore."""
        await self._presence.sweep()
        queues = await self._places.all_queues()
        if not queues:
            return 0
        first = self._next_queue % len(queues)
        steps = 0
        for n, queue in enumerate((*queues[first:], *queues[:first])):
            if steps >= limit:
                self._next_queue = first + n - 1  # the next tick begins with the last queue again
                break
            prefixes = await self._places.prefixes(queue)
            for prefix in prefixes:
                if steps < limit:
                    steps += await self._tick_at(prefix, limit - steps)
            if len(prefixes) > 1:
                await self._mail.pump(self._places.space.prefix(queue))
        return min(steps, limit)

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
