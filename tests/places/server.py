"""grpc://: a jq-server in a thread of the test process, on a store that is emptied for every test.

The tests set the server's clock: each handle sends its time before a call (`frames.Time`).
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

from jobq_conformance.places import Fresh, Opening, Unavailable, at, place
from tests.places import postgres, valkey

T = TypeVar("T")


class Clock:
    """The time that the last client has set. Before that, it is the machine's."""

    def __init__(self) -> None:
        self.now_ms: int | None = None

    def __call__(self) -> int:
        return int(time.time() * 1000) if self.now_ms is None else self.now_ms

    def set(self, now_ms: int) -> None:
        """What `frames.Time` does."""
        self.now_ms = now_ms


class ServerThread:
    """An event loop in a thread, which runs one server after the other on the same port."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._stop: Callable[[], Coroutine[Any, Any, None]] | None = None

    def do(self, work: Coroutine[Any, Any, T], timeout: float = 30) -> T:
        """Run a coroutine in the thread."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout)

    def serve(self, opening: Opening) -> str:
        """Serve the store that `opening` opens. Returns the URL of the server."""
        return self.do(self._serve(opening))

    async def _serve(self, opening: Opening) -> str:
        from jobq.server.config import ServerSettings
        from jobq.server.context import ServerContext
        from jobq.server.exchange import ExchangeService
        from jobq.server.host import Host

        await self._end()
        clock = Clock()
        store = opening(clock)
        await store.migrate()
        settings = ServerSettings(grpc_port=0, upkeep=False)
        host = Host(
            ServerContext(store, settings, clock=clock),
            [lambda context: ExchangeService(context, set_time=clock.set)],
        )
        await host.start()

        async def stop() -> None:
            await host.stop(0)
            await store.aclose()

        self._stop = stop
        return f"grpc://127.0.0.1:{host.port}"

    async def _end(self) -> None:
        stop, self._stop = self._stop, None
        if stop is not None:
            await stop()

    def close(self) -> None:
        """End the server and the thread."""
        self.do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


@contextmanager
def serving() -> Iterator[ServerThread]:
    """A thread for servers. Raises Unavailable if gRPC is not installed."""
    try:
        import grpc_health  # noqa: F401 (a part of jobq[server])
    except ImportError:
        raise Unavailable("pip install 'jobq[server]'") from None
    server = ServerThread()
    try:
        yield server
    finally:
        server.close()


def _in_front_of(behind: Fresh) -> Iterator[Fresh]:
    with serving() as server:
        yield lambda: at(server.serve(behind()))


@place("grpc")
def on_sqlite(tmp: Path) -> Iterator[Fresh]:
    """A server on a SQLite file per test."""
    yield from _in_front_of(lambda: at(f"sqlite:///{tmp}/{uuid4().hex}.db"))


@place("grpc-valkey", default=False)
def on_valkey(tmp: Path) -> Iterator[Fresh]:
    """A server on one Valkey 9."""
    for fresh in valkey.valkey(tmp):
        yield from _in_front_of(fresh)


@place("grpc-postgres", default=False)
def on_postgres(tmp: Path) -> Iterator[Fresh]:
    """A server on PostgreSQL."""
    for fresh in postgres.postgres(tmp):
        yield from _in_front_of(fresh)
