"""Messages between queues, which may be on different nodes: a message stands in the sender's outbox until the receiver has
taken it, and taking it twice is taking it once. Whoever made a queue post one delivers it; ticks deliver what was left.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import Any

import msgspec

from jobq.core.records import QueueName
from jobq.errors import StoreUnavailable
from jobq.stores.valkey import keys
from jobq.stores.valkey.handle import Handle

log = logging.getLogger("jobq.valkey")
_MAIL = 100
"""Messages per delivery."""
_ROUNDS = 100
"""Deliveries that follow from one call; the rest waits for a tick."""


class Mail(Handle):
    """What a call has left to do elsewhere."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._pumping: dict[str, asyncio.Lock] = {}

    async def after(
        self,
        queue: QueueName,
        prefix: str,
        *,
        to_wake: int = 0,
        messages: int = 0,
        due_in: int = -1,
    ) -> None:
        """What a call has left to do elsewhere: deliver messages, wake sleepers of a partitioned queue."""
        if messages:
            await self.pump(prefix)
        if to_wake or due_in >= 0:
            await self.fcall("wake_some", self.keys.prefix(queue), to_wake, due_in)

    async def pump(self, prefix: str) -> None:
        """Deliver what stands in the outbox of a queue, and what that leads to. What fails is left for the next tick."""
        todo = [prefix]
        try:
            for _ in range(_ROUNDS):
                if not todo:
                    return
                todo += await self._pump_once(todo.pop())
        except StoreUnavailable as e:
            log.warning("messages of %s wait for the next tick: %s", prefix, e)

    async def _pump_once(self, prefix: str) -> list[str]:
        box = keys.outbox(prefix)
        more: list[str] = []
        async with self._pumping.setdefault(prefix, asyncio.Lock()):
            found = await self.servers.command(prefix, "ZRANGE", box, 0, _MAIL - 1)
            taken: Counter[bytes] = Counter()
            places: Counter[bytes] = Counter()
            by_place: dict[str, list[bytes]] = {}
            for message in found:
                for place in await self._addressed(message):
                    by_place.setdefault(place, []).append(message)
                    places[message] += 1
            for place, messages in by_place.items():
                args = (self.now(), *(m.partition(b"\n")[2] for m in messages))
                numbers, waiting, to_wake = await self.fcall("deliver", place, *args)
                taken.update(messages[int(n) - 1] for n in numbers.split(b",") if n)
                await self.after(keys.queue_of(place), place, to_wake=to_wake)
                if waiting:
                    more.append(place)
            done = [message for message in found if taken[message] == places[message]]
            if done:
                await self.servers.command(prefix, "ZREM", box, *done)
            if len(done) < len(found):  # one that nobody took: its queue has partitions since
                self._partitions.clear()
            if done and len(found) == _MAIL:
                more.append(prefix)
        return more

    async def _addressed(self, message: bytes) -> list[str]:
        """Where a message is to be delivered. One for a job of a partitioned queue as a whole: where that goes, or may be."""
        place, _, packed = message.partition(b"\n")
        target = place.decode()
        queue = keys.queue_of(target)
        await self.meet(queue)
        if target != self.keys.prefix(queue) or await self.partitions(queue) == 1:
            return [target]
        m = msgspec.msgpack.decode(packed, type=_Message)
        if m.type == "cancel":
            return await self.prefixes(queue)
        if (
            m.type != "letter"
        ):  # for the queue, not for a job of it: its schedules, for one, are kept in one place
            return [target]
        mode = await self.servers.command(target, "HGET", keys.settings(target), "mode")
        return [self.place(queue, m.id, (m.key or m.origin_queue) if mode == b"keyed" else None)]


class _Message(msgspec.Struct, rename={"origin_queue": "from"}):
    """What of a message tells where it belongs."""

    type: str
    id: str = ""
    key: str | None = None
    origin_queue: str = ""
