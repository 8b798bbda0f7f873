"""`listen` and `expect`: one subscribed connection per handle, shared by everyone who listens.

The ends of jobs are published to a channel of the handle. Jobs that the handle puts and expects
carry the channel's name; for other jobs the channel is registered. If a ping gets no reply or the
socket is lost, the listener connects again with the same subscriptions.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from jobq.core.records.jobs import JobKey, JobRecord, QueueName, Signal, Topic
from jobq.core.rules.fleet import Pace
from jobq.errors import CorruptStore, JobqError
from jobq.stores.valkey import jobs, keys
from jobq.stores.valkey.calls import Calls
from jobq.stores.valkey.connection import Connection, ServerError
from jobq.stores.valkey.partitions import Partitions
from jobq.stores.valkey.servers import Servers

T = TypeVar("T")

log = logging.getLogger("jobq.valkey")
_PING_SECONDS = 5.0
"""Between pings (longer in a large fleet). They also renew the registration of `log` topics."""
_LOG_MS = 90_000
"""How long a registration for a `log` topic lasts: many pings, also in a large fleet."""
_RETRY_SECONDS = 0.5


class Listener:
    """Distributes messages of the subscribed connection to those who listen."""

    def __init__(self, servers: Servers, calls: Calls, partitions: Partitions, pace: Pace) -> None:
        self.channel = partitions.space.handle_channel(os.urandom(9).hex())
        """Where the server publishes the ends of jobs for this handle."""
        self.expected: dict[tuple[QueueName, str], set[asyncio.Queue[JobRecord | None]]] = {}
        """Jobs that are put through this handle and whose ends are expected."""
        self._servers = servers
        self._calls = calls
        self._partitions = partitions
        self._pace = pace
        self._listeners: dict[Topic, set[asyncio.Queue[Signal]]] = {}
        self._channels: dict[str, int] = {}
        """How many listen to a channel."""
        self._subscribed: set[str] = set()
        """The channels that the server has confirmed on the connection."""
        self._connection: Connection | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._opening = asyncio.Lock()
        self._lost = asyncio.Event()

    @asynccontextmanager
    async def listen(self, topics: Sequence[Topic]) -> AsyncIterator[AsyncIterator[Signal]]:
        """See SignalStore."""
        signals: asyncio.Queue[Signal] = asyncio.Queue()
        channels = [channel for topic in topics for channel in await self._channels_of(topic)]
        for topic in topics:
            self._listeners.setdefault(topic, set()).add(signals)
        try:
            await self._subscribe(channels)
            for topic in topics:
                await self._register(topic)
            yield _items(signals)
        finally:
            for topic in topics:
                self._listeners[topic].discard(signals)
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
                yield _items(ends)
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
            return [self._partitions.space.cancel_channel(topic.name or "")]
        assert topic.queue is not None
        prefixes = await self._partitions.prefixes(topic.queue)
        if topic.kind == "noted":
            return [keys.noted_channel(prefix, topic.name or "") for prefix in prefixes]
        return [keys.log_channel(prefix) for prefix in prefixes]

    async def _register(self, topic: Topic) -> None:
        """Make the server publish what the topic asks for."""
        if topic.kind in ("ended", "noted"):
            assert topic.queue is not None
            for prefix in await self._partitions.prefixes(topic.queue):
                await self._calls.fcall("watch", prefix, self.channel, topic.name or "")
        elif topic.kind == "log":
            assert topic.queue is not None
            for prefix in await self._partitions.prefixes(topic.queue):
                await self._calls.fcall("hear_log", prefix, self._calls.now(), _LOG_MS)

    # ── the connection ────────────────────────────────────────────────────────────────────────────

    async def _subscribe(self, channels: Sequence[str]) -> None:
        for channel in channels:
            self._channels[channel] = self._channels.get(channel, 0) + 1
        async with self._opening:
            if self._connection is None or self._connection.closed:
                await self._open()
            else:
                # Another listener of a channel may have been cancelled before it subscribed.
                new = dict.fromkeys(each for each in channels if each not in self._subscribed)
                await self._send_subscribe(self._connection, list(new))

    def _unsubscribe(self, channels: Sequence[str]) -> None:
        for channel in channels:
            self._channels[channel] -= 1
            # The channel of the handle stays subscribed: the next expected job needs it again.
            if not self._channels[channel] and channel != self.channel:
                del self._channels[channel]
                self._subscribed.discard(channel)
                if self._connection is not None and not self._connection.closed:
                    self._connection.send("UNSUBSCRIBE", channel)

    async def _open(self) -> None:
        node = await self._servers.node_of(self.channel)
        connection = await self._servers.open(node)
        self._subscribed.clear()
        try:
            await self._send_subscribe(connection, list(self._channels))
        except BaseException:  # the caller was cancelled, or the server refused
            connection.close()
            raise
        connection.on_message = self._receive
        self._connection = connection
        if self._supervisor is None or self._supervisor.done():
            self._supervisor = asyncio.get_running_loop().create_task(self._supervise())

    async def _send_subscribe(self, connection: Connection, channels: Sequence[str]) -> None:
        """Subscribe to channels. The server confirms each one by a reply."""
        for channel in channels:
            await self._servers.ask(connection, "SUBSCRIBE", channel)
            self._subscribed.add(channel)

    async def _supervise(self) -> None:
        """Replace a connection that is lost. Those who listen find what it missed by reading."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_PING_SECONDS * self._pace.stretch):
                    await self._lost.wait()
            self._lost.clear()
            try:
                async with self._opening:
                    if self._connection is None or self._connection.closed:
                        self._servers.forget(None)
                        await self._open()
                    await self._connection.ask("PING")  # type: ignore[union-attr]
                for topic in list(self._listeners):
                    if topic.kind == "log":
                        with contextlib.suppress(CorruptStore):  # other queues still work
                            await self._register(topic)
            except (JobqError, ServerError, OSError) as e:
                url = self._servers.address.shown
                log.info("the subscribed connection to %s is unavailable: %s", url, e)
                await asyncio.sleep(_RETRY_SECONDS)
                self._lost.set()

    def _receive(self, message: list[Any]) -> None:
        if message[0] == b"closed":
            self._lost.set()
            return
        if message[2][:1] == jobs.PUBLISHED:
            queue, record = jobs.published(message[2])
            self._notify_end(queue, record.id, record)
            return
        channel, text = message[1].decode(), message[2].decode()
        if channel.endswith("}" + keys.KEY["log_channel"]):
            queue = keys.queue_of(channel)
            self._notify(Topic("log", queue, None), Signal("log", queue, None))
            return
        kind, prefix, *ids = text.split("\n")
        queue = keys.queue_of(prefix)
        for id in ids:
            if kind == "ended":
                self._notify_end(queue, id, None)
            elif kind == "noted":
                self._notify(Topic("noted", queue, id), Signal("noted", queue, id))
            else:
                worker = channel.removeprefix(self._partitions.space.cancel_channel(""))
                self._notify(Topic("cancel", None, worker), Signal("cancel", queue, id))

    def _notify_end(self, queue: QueueName, id: str, record: JobRecord | None) -> None:
        for ends in self.expected.get((queue, id), ()):
            ends.put_nowait(record)
        self._notify(Topic("ended", queue, id), Signal("ended", queue, id))

    def _notify(self, topic: Topic, signal: Signal) -> None:
        for signals in self._listeners.get(topic, ()):
            signals.put_nowait(signal)

    async def aclose(self) -> None:
        """Close the connection."""
        if self._supervisor is not None:
            self._supervisor.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._supervisor
        if self._connection is not None:
            await self._connection.aclose()


async def _items(queue: asyncio.Queue[T]) -> AsyncIterator[T]:
    while True:
        yield await queue.get()
