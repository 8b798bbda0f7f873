"""Messages between queues, which may be on different nodes.

A message stays in the sender's outbox until the receiver has taken it. Taking a message twice has
the same effect as taking it once. The handle whose call posted a message delivers it; ticks deliver
what was left.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter

import msgspec

from jobq.core.records.jobs import QueueName
from jobq.errors import StoreUnavailable
from jobq.stores.valkey import keys
from jobq.stores.valkey.calls import Calls
from jobq.stores.valkey.partitions import Partitions
from jobq.stores.valkey.servers import Servers

log = logging.getLogger("jobq.valkey")
_MAX_MESSAGES = 100
"""Messages per delivery: one call takes them all, and the server does nothing else meanwhile."""
_MAX_ROUNDS = 100
"""Deliveries that follow from one call. A tick does the rest."""


class Mail:
    """Does what a call has left to do elsewhere: deliver messages, wake workers."""

    def __init__(self, servers: Servers, calls: Calls, partitions: Partitions) -> None:
        self._servers = servers
        self._calls = calls
        self._partitions = partitions
        self._delivering: dict[str, asyncio.Lock] = {}

    async def after(
        self,
        queue: QueueName,
        prefix: str,
        *,
        to_wake: int = 0,
        messages: int = 0,
        due_in: int = -1,
    ) -> None:
        """Deliver messages, and wake the sleeping workers of a partitioned queue."""
        if messages:
            await self.pump(prefix)
        if to_wake or due_in >= 0:
            await self._calls.fcall(
                "wake_some", self._partitions.space.prefix(queue), to_wake, due_in
            )

    async def pump(self, prefix: str) -> None:
        """Deliver the outbox of a queue, and the messages that this leads to.

        What cannot be delivered now is left for the next tick.
        """
        todo = [prefix]
        try:
            for _ in range(_MAX_ROUNDS):
                if not todo:
                    return
                todo += await self._pump_once(todo.pop())
        except StoreUnavailable as e:
            log.warning("messages of %s are delivered by the next tick: %s", prefix, e)

    async def _pump_once(self, prefix: str) -> list[str]:
        """Deliver up to _MAX_MESSAGES. Returns the prefixes whose outbox has more."""
        box = keys.outbox(prefix)
        more: list[str] = []
        async with self._delivering.setdefault(prefix, asyncio.Lock()):
            found = await self._servers.command(prefix, "ZRANGE", box, 0, _MAX_MESSAGES - 1)
            taken: Counter[bytes] = Counter()
            receivers: Counter[bytes] = Counter()
            by_receiver: dict[str, list[bytes]] = {}
            for message in found:
                for receiver in await self._receivers(message):
                    by_receiver.setdefault(receiver, []).append(message)
                    receivers[message] += 1
            for receiver, messages in by_receiver.items():
                args = (self._calls.now(), *(m.partition(b"\n")[2] for m in messages))
                numbers, waiting, to_wake = await self._calls.fcall("deliver", receiver, *args)
                taken.update(messages[int(n) - 1] for n in numbers.split(b",") if n)
                await self.after(keys.queue_of(receiver), receiver, to_wake=to_wake)
                if waiting:
                    more.append(receiver)
            done = [message for message in found if taken[message] == receivers[message]]
            if done:
                await self._servers.command(prefix, "ZREM", box, *done)
            if len(done) < len(found):  # not taken: its queue has partitions since
                self._partitions.forget_all()
            if done and len(found) == _MAX_MESSAGES:
                more.append(prefix)
        return more

    async def _receivers(self, message: bytes) -> list[str]:
        """The prefixes that a message goes to.

        A message about a job of a partitioned queue goes to the job's partition, or to all of them.
        """
        address, _, packed = message.partition(b"\n")
        target = address.decode()
        queue = keys.queue_of(target)
        await self._partitions.register(queue)
        if (
            target != self._partitions.space.prefix(queue)
            or await self._partitions.count(queue) == 1
        ):
            return [target]
        m = msgspec.msgpack.decode(packed, type=_Message)
        if m.type == "cancel":
            return await self._partitions.prefixes(queue)
        if m.type != "letter":  # about the queue as a whole, such as its schedules
            return [target]
        mode = await self._servers.command(target, "HGET", keys.settings(target), "mode")
        key = (m.key or m.origin_queue) if mode == b"keyed" else None
        return [self._partitions.prefix_of(queue, m.id, key)]


class _Message(msgspec.Struct, rename={"origin_queue": "from"}):
    """The fields of a message that say where it belongs."""

    type: str
    id: str = ""
    key: str | None = None
    origin_queue: str = ""
