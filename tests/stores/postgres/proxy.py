"""A TCP proxy between a client and a server that can delay, swallow, cut and refuse.

It runs on an event loop in a thread of its own, so tests with and without asyncio can use it, and a
test that blocks its own loop does not stop it.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from tests.waiting import PATIENCE_S, takes

T = TypeVar("T")

_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER with 0 seconds: closing the socket sends a reset, as a machine that restarted does."""


class Proxy:
    """Forwards connections to a port on this machine. Its methods may be called by any thread."""

    def __init__(self, target: int) -> None:
        self.delay_s = 0.0
        """Seconds that each packet waits, in each direction."""
        self.opened = 0
        """The number of connections that clients have opened."""
        self.passed = 0
        """The number of bytes that were forwarded, in both directions."""
        self.port = 0
        self._target = target
        self._swallows = False
        self._swallows_replies = False
        self._refuses = False
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._listener = self._do(self._listen())

    def url(self, database: str = "postgres") -> str:
        """The address of a PostgreSQL database behind the proxy."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def swallow(self) -> None:
        """Become half-open: connections stay open, new ones succeed, and no byte arrives.

        Swallowed bytes are lost, so connections of that time are of no use after `restore`.
        """
        self._swallows = True

    def swallow_replies(self) -> None:
        """Lose what servers send: requests arrive and take effect, and nobody hears of it."""
        self._swallows_replies = True

    def refuse(self) -> None:
        """Reset all connections now, and every new one at once."""
        self._refuses = True
        self.cut()

    def restore(self) -> None:
        """Forward again, without delay."""
        self._swallows = self._swallows_replies = self._refuses = False
        self.delay_s = 0.0

    def cut(self) -> int:
        """Reset all connections and return their number. New ones succeed."""
        return self._do(self._cut())

    def close(self) -> None:
        """Reset all connections and stop listening."""
        self._do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        self._loop.close()

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)

    async def _listen(self) -> asyncio.Server:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        return server

    async def _cut(self) -> int:
        writers, self._writers = self._writers, set()
        for writer in writers:
            _reset(writer)
        return len(writers) // 2

    async def _end(self) -> None:
        self._listener.close()
        await self._cut()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.opened += 1
        if self._refuses:
            _reset(writer)
            return
        try:
            back, forth = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:  # the server is down
            _reset(writer)
            return
        pair = {writer, forth}
        self._writers |= pair
        try:
            await asyncio.gather(self._pump(reader, forth), self._pump(back, writer, replies=True))
        except asyncio.CancelledError:  # the proxy is closed: asyncio would log it as an error
            pass
        finally:
            self._writers -= pair
            writer.close()
            forth.close()

    async def _pump(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, replies: bool = False
    ) -> None:
        try:
            while data := await source.read(65_536):
                if self.delay_s:
                    await takes(self.delay_s)
                if not (self._swallows or (replies and self._swallows_replies)):
                    self.passed += len(data)
                    sink.write(data)
                    await sink.drain()
            if not self._swallows:  # the end of a stream does not arrive either
                sink.close()
        except OSError:
            _reset(sink)


def _reset(writer: asyncio.StreamWriter) -> None:
    if (connection := writer.get_extra_info("socket")) is not None and connection.fileno() >= 0:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()


@contextmanager
def proxy_to(port: int) -> Iterator[Proxy]:
    """A proxy that is closed when the context ends."""
    proxy = Proxy(port)
    try:
        yield proxy
    finally:
        proxy.close()
