"""Being told: one subscribed connection per handle, shared by all that listen through it.

Ends of jobs come on the handle's own channel: jobs that it puts and expects carry its name, others are given it. The
connection is looked after: pings that get no pong, or a lost socket, make a new one with the same subscriptions.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from jobq.core.records import JobKey, JobRecord, QueueName, Signal, Topic
from jobq.errors import StoreUnavailable
from jobq.stores.valkey import keys, unpacking
from jobq.stores.valkey.handle import Handle
from jobq.stores.valkey.wire import Connection, ServerError

T = TypeVar("T")

log = logging.getLogger("jobq.valkey")
_PING = 5.0
"""Seconds between pings (more in a large fleet); they also keep `log` topics registered."""
_LOG_MS = 90_000
_RETRY = 0.5


class Listen(Handle):
    """`listen`."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._listeners: dict[Topic, set[asyncio.Queue[Signal]]] = {}
        self._channels: dict[str, int] = {}
        self._ear: Connection | None = None
        self._care: asyncio.Task[None] | None = None
        self._opening = asyncio.Lock()
        self._lost = asyncio.Event()

    @asynccontextmanager
    async def listen(self, topics: Sequence[Topic]) -> AsyncIterator[AsyncIterator[Signal]]:
        """See SignalStore."""
        heard: asyncio.Queue[Signal] = asyncio.Queue()
        channels = [channel for topic in topics for channel in await self._channels_of(topic)]
        for topic in topics:
            self._listeners.setdefault(topic, set()).add(heard)
        try:
            await self._subscribe(channels)
            for topic in topics:
                await self._register(topic)
            yield _drained(heard)
        finally:
            for topic in topics:
                self._listeners[topic].discard(heard)
                if not self._listeners[topic]:
                    del self._listeners[topic]
            self._unsubscribe(channels)

    @asynccontextmanager
    async def expect(self, job: JobKey) -> AsyncIterator[AsyncIterator[JobRecord | None]]:
        """See Pipelined."""
        ends: asyncio.Queue[JobRecord | None] = asyncio.Queue()
        self.expected.setdefault(job, set()).add(ends)
        try:
            await self._subscribe([self.channel])
            try:
                yield _drained(ends)
            finally:
                self._unsubscribe([self.channel])
        finally:
            self.expected[job].discard(ends)
            if not self.expected[job]:
                del self.expected[job]

    async def _channels_of(self, topic: Topic) -> list[str]:
        if topic.kind == "ended":
            return [self.channel]
        if topic.kind == "cancel":
            return [self.keys.cancel_channel(topic.name or "")]
        assert topic.queue is not None
        return [keys.log_channel(prefix) for prefix in await self.prefixes(topic.queue)]

    async def _register(self, topic: Topic) -> None:
        """What the store must know, so that it tells us."""
        if topic.kind == "ended":
            assert topic.queue is not None
            for prefix in await self.prefixes(topic.queue):
                await self.fcall("watch", prefix, self.channel, topic.name or "")
        elif topic.kind == "log":
            assert topic.queue is not None
            for prefix in await self.prefixes(topic.queue):
                await self.fcall("hear_log", prefix, self.now(), _LOG_MS)

    # ── the connection ────────────────────────────────────────────────────────────────────────────

    async def _subscribe(self, channels: Sequence[str]) -> None:
        new = [channel for channel in dict.fromkeys(channels) if channel not in self._channels]
        for channel in channels:
            self._channels[channel] = self._channels.get(channel, 0) + 1
        async with self._opening:
            if self._ear is None or self._ear.closed:
                await self._open()
            elif new:
                await _subscribe(self._ear, new)

    def _unsubscribe(self, channels: Sequence[str]) -> None:
        for channel in channels:
            self._channels[channel] -= 1
            # The handle's own channel stays: the next request/response will want it.
            if not self._channels[channel] and channel != self.channel:
                del self._channels[channel]
                if self._ear is not None and not self._ear.closed:
                    self._ear.send("UNSUBSCRIBE", channel)

    async def _open(self) -> None:
        node = await self.servers.node_of(self.channel)
        ear = await self.servers.open(node)
        try:
            await _subscribe(ear, list(self._channels))
        except BaseException:  # whoever wanted to listen has gone
            ear.close()
            raise
        ear.on_message = self._hear
        self._ear = ear
        if self._care is None or self._care.done():
            self._care = asyncio.get_running_loop().create_task(self._look_after())

    async def _look_after(self) -> None:
        """A deaf connection is found and replaced. What it missed, listeners find by looking."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_PING * self.pace.stretch):
                    await self._lost.wait()
            self._lost.clear()
            try:
                async with self._opening:
                    if self._ear is None or self._ear.closed:
                        self.servers.forget(None)
                        await self._open()
                    await self._ear.ask("PING")  # type: ignore[union-attr]
                for topic in list(self._listeners):
                    if topic.kind == "log":
                        await self._register(topic)
            except (StoreUnavailable, ServerError, OSError) as e:
                log.info("the listening connection of %s is away: %s", self.url, e)
                await asyncio.sleep(_RETRY)
                self._lost.set()

    def _hear(self, message: list[Any]) -> None:
        if message[0] == b"closed":
            self._lost.set()
            return
        if message[2][:1] == b"\xff":
            queue, record = unpacking.completed(message[2])
            self._tell_end(queue, record.id, record)
            return
        channel, text = message[1].decode(), message[2].decode()
        if channel.endswith("}" + keys.KEY["log_channel"]):
            queue = keys.queue_of(channel)
            self._tell(Topic("log", queue, None), Signal("log", queue, None))
            return
        kind, prefix, *ids = text.split("\n")
        queue = keys.queue_of(prefix)
        for id in ids:
            if kind == "ended":
                self._tell_end(queue, id, None)
            else:
                self._tell(
                    Topic("cancel", None, channel.removeprefix(self.keys.cancel_channel(""))),
                    Signal("cancel", queue, id),
                )

    def _tell_end(self, queue: QueueName, id: str, record: JobRecord | None) -> None:
        for ends in self.expected.get((queue, id), ()):
            ends.put_nowait(record)
        self._tell(Topic("ended", queue, id), Signal("ended", queue, id))

    def _tell(self, topic: Topic, signal: Signal) -> None:
        for heard in self._listeners.get(topic, ()):
            heard.put_nowait(signal)

    async def close_listen(self) -> None:
        """End it."""
        if self._care is not None:
            self._care.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._care
        if self._ear is not None:
            await self._ear.aclose()


async def _subscribe(ear: Connection, channels: Sequence[str]) -> None:
    """Each channel is confirmed by a reply of its own."""
    for channel in channels:
        await ear.ask("SUBSCRIBE", channel)


async def _drained(heard: asyncio.Queue[T]) -> AsyncIterator[T]:
    while True:
        yield await heard.get()
