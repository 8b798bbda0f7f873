"""What servers have used so far: processor time, network, memory and log."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit, urlunsplit

from bench.places import Postgres, ask, ask_postgres
from scripts.ports import free_port


class Sample(NamedTuple):
    """What a server has used until now."""

    cpu_us: float
    bytes: float  # network, both directions
    stored: float  # memory of Valkey, or bytes of tables and indexes
    log: float  # write-ahead log of PostgreSQL

    def since(self, before: Sample) -> Sample:
        """The difference."""
        return Sample(*(now - then for now, then in zip(self, before, strict=True)))

    def per(self, n: float) -> Sample:
        """The part of one of n."""
        return Sample(*(value / n for value in self))


Meter = Callable[[], Sample]


def cpu_us(pid: int) -> float:
    """Processor time of a process and its threads. The scheduler counts it in nanoseconds."""
    total = 0
    with contextlib.suppress(OSError):  # the process has just ended
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):  # the thread has just ended
                total += int(Path(f"/proc/{pid}/task/{thread}/schedstat").read_text().split()[0])
    return total / 1000


def family_cpu_us(pid: int) -> float:
    """The same with all child processes, also those that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ended = (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK") * 1e6
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return cpu_us(pid) + ended + sum(cpu_us(int(child)) for child in children)


def resident(pid: int) -> int:
    """The memory of a process in bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def info(port: int, section: str, name: str) -> int:
    """A number that a Valkey server reports."""
    return int(ask(port, f"INFO {section}").split(f"{name}:")[1].split()[0])


def valkey_meter(servers: Sequence[tuple[int, int]]) -> Meter:
    """All primaries of a Cluster, or one server, as (pid, port)."""

    def sample() -> Sample:
        return Sample(
            sum(cpu_us(pid) for pid, _ in servers),
            sum(
                info(port, "stats", f"total_net_{way}put_bytes")
                for _, port in servers
                for way in ("in", "out")
            ),
            sum(info(port, "memory", "used_memory") for _, port in servers),
            0.0,
        )

    return sample


def postgres_meter(database: Postgres, proxy: Proxy) -> Meter:
    """The server of a database, with its backends and background processes."""

    def sample() -> Sample:
        log = ask_postgres(
            database.server.url, "select pg_current_wal_insert_lsn() - '0/0'::pg_lsn"
        )
        return Sample(
            family_cpu_us(database.server.pid), proxy.bytes, database.bytes_used(), float(log)
        )

    return sample


def process_meter(pid: int, proxy: Proxy) -> Meter:
    """A process behind a proxy, such as a jq-server."""
    return lambda: Sample(cpu_us(pid), proxy.bytes, resident(pid), 0.0)


class Proxy:
    """Passes connections on and counts their bytes."""

    def __init__(self, port: int) -> None:
        self.bytes = 0
        self.port = free_port()
        self._to = port
        self._loop = asyncio.new_event_loop()
        self._open = threading.Event()

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._connect, "127.0.0.1", self.port)
        self._open.set()
        async with server:
            await server.serve_forever()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._to)
        try:
            await asyncio.wait(
                [
                    asyncio.ensure_future(self._copy(reader, back)),
                    asyncio.ensure_future(self._copy(there, writer)),
                ],
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            back.close()
            writer.close()

    async def _copy(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(1 << 16):
                self.bytes += len(data)
                target.write(data)
                await target.drain()

    def _run(self) -> None:
        with contextlib.suppress(asyncio.CancelledError, RuntimeError):
            self._loop.run_until_complete(self._serve())


@contextmanager
def counted(url: str) -> Iterator[tuple[str, Proxy]]:
    """The same address through a proxy that counts bytes."""
    parts = urlsplit(url)
    assert parts.port is not None
    proxy = Proxy(parts.port)
    threading.Thread(target=proxy._run, daemon=True).start()
    proxy._open.wait(10)
    through = parts.netloc.replace(str(parts.port), str(proxy.port))
    try:
        yield urlunsplit(parts._replace(netloc=through)), proxy
    finally:
        proxy._loop.call_soon_threadsafe(proxy._loop.stop)
