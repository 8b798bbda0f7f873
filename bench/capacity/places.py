"""The servers that are measured, each new, with a meter."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from bench.capacity.meters import (
    Meter,
    counted,
    info,
    postgres_meter,
    process_meter,
    valkey_meter,
)
from bench.places import Postgres, SqliteFile, place
from bench.server import running_server
from jobq.core.records.jobs import QueueName
from jobq.operations.capacity.use import SLOTS
from jobq.stores.valkey.keys import Space, hash_slot_of
from tests.stores.valkey.servers import running_cluster


class Target(NamedTuple):
    """A store that takes load, and what to read its costs from."""

    url: str
    meter: Meter
    ports: tuple[int, ...] = ()  # of Valkey servers
    pid: int = 0  # of a jq-server


@contextmanager
def valkey() -> Iterator[Target]:
    """One Valkey without persistence."""
    with place("valkey", "valkey://127.0.0.1:{port}") as where:
        port = int(where.url.rpartition(":")[2])
        yield Target(where.url, valkey_meter([(pid_of(port), port)]), (port,))


@contextmanager
def cluster() -> Iterator[Target]:
    """A Valkey Cluster of three primaries."""
    with (
        tempfile.TemporaryDirectory(prefix="jobq-bench-") as folder,
        running_cluster(Path(folder), replicas=0) as nodes,
    ):
        ports = tuple(primary.port for primary in nodes.primaries)
        yield Target(nodes.url, valkey_meter([(pid_of(port), port) for port in ports]), ports)


@contextmanager
def postgres() -> Iterator[Target]:
    """One PostgreSQL with durable commits."""
    with place("postgres", "") as where, counted(where.url) as (url, proxy):
        assert isinstance(where, Postgres)
        yield Target(url, postgres_meter(where, proxy))


@contextmanager
def jq_server() -> Iterator[Target]:
    """A jq-server in front of one Valkey."""
    with (
        valkey() as store,
        running_server(store.url) as server,
        counted(server.url) as (url, proxy),
    ):
        yield Target(url, process_meter(server.pid, proxy), store.ports, server.pid)


@contextmanager
def sqlite() -> Iterator[tuple[str, SqliteFile]]:
    """A SQLite file. It has no server: the calls of a process are measured in that process."""
    with place("sqlite", "sqlite:///{folder}/jobs.db") as where:
        assert isinstance(where, SqliteFile)
        yield where.url, where


def pid_of(port: int) -> int:
    """The process of a Valkey server."""
    return info(port, "server", "process_id")


def shares(queue: str, partitions: int, primaries: int) -> list[float]:
    """The part of a queue's partitions that each primary has."""
    name, counts = QueueName("default", queue), [0] * primaries
    for partition in range(partitions):
        counts[_primary(Space().partition_prefix(name, partition), primaries)] += 1
    return [count / partitions for count in counts]


def home(queue: str, primaries: int) -> int:
    """The primary where workers of a partitioned queue sleep."""
    return _primary(Space().prefix(QueueName("default", queue)), primaries)


def _primary(key: str, primaries: int) -> int:
    return hash_slot_of(key) * primaries // SLOTS


def connections(port: int) -> int:
    """Connections to a Valkey server, without the one that asks."""
    return info(port, "clients", "connected_clients") - 1
