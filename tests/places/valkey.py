"""Valkey and Redis: real servers on free ports, emptied for every test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from jobq_conformance.places import Fresh, Opening, Unavailable, at, place
from tests.stores.valkey import servers


def _found(binary: Callable[[], str]) -> str:
    try:
        return binary()
    except servers.Missing as missing:
        raise Unavailable(str(missing)) from None


@place("valkey")
def valkey(tmp: Path) -> Iterator[Fresh]:
    """One Valkey 9."""
    yield from _single(tmp, servers.valkey_binary)


@place("redis")
def redis(tmp: Path) -> Iterator[Fresh]:
    """One Redis 7.0, the oldest that will do."""
    yield from _single(tmp, servers.redis_binary)


def _single(tmp: Path, binary: Callable[[], str]) -> Iterator[Fresh]:
    with servers.running(_found(binary), tmp) as server:

        def fresh() -> Opening:
            server.tell("FLUSHALL")
            return at(server.url)

        yield fresh


@place("valkey-cluster")
def cluster(tmp: Path) -> Iterator[Fresh]:
    """Three primaries with a replica each: queues are on different nodes."""
    _found(servers.valkey_binary)
    with servers.running_cluster(tmp) as nodes:

        def fresh() -> Opening:
            for primary in nodes.primaries:
                primary.tell("FLUSHALL")
            return at(nodes.url)

        yield fresh


@place("valkey-sentinel")
def sentinel(tmp: Path) -> Iterator[Fresh]:
    """A primary found through Sentinels."""
    _found(servers.valkey_binary)
    with servers.running_sentinel(tmp) as watched:

        def fresh() -> Opening:
            watched.primary.tell("FLUSHALL")
            return at(watched.url)

        yield fresh
