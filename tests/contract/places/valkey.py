"""Valkey and Redis: real servers on free ports, emptied for every test."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from . import Fresh, Opening, Unavailable, at, place


def _servers() -> ModuleType:
    """tests/stores/valkey/servers.py: the tests are no package, so it is taken by its path."""
    name = "valkey_test_servers"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).parents[2] / "stores" / "valkey" / "servers.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


@place("valkey")
def valkey(tmp: Path) -> Iterator[Fresh]:
    """One Valkey 9."""
    yield from _single(tmp, "valkey_binary")


@place("redis")
def redis(tmp: Path) -> Iterator[Fresh]:
    """One Redis 7.0, the oldest that will do."""
    yield from _single(tmp, "redis_binary")


def _single(tmp: Path, binary: str) -> Iterator[Fresh]:
    servers = _servers()
    try:
        path = getattr(servers, binary)()
    except servers.Missing as missing:
        raise Unavailable(str(missing)) from None
    with servers.running(path, tmp) as server:

        def fresh() -> Opening:
            server.tell("FLUSHALL")
            return at(server.url)

        yield fresh


@place("valkey-cluster")
def cluster(tmp: Path) -> Iterator[Fresh]:
    """Three primaries with a replica each: queues are on different nodes."""
    servers = _servers()
    try:
        servers.valkey_binary()
    except servers.Missing as missing:
        raise Unavailable(str(missing)) from None
    with servers.running_cluster(tmp) as nodes:

        def fresh() -> Opening:
            for primary in nodes.primaries:
                primary.tell("FLUSHALL")
            return at(nodes.url)

        yield fresh


@place("valkey-sentinel")
def sentinel(tmp: Path) -> Iterator[Fresh]:
    """A primary found through Sentinels."""
    servers = _servers()
    try:
        servers.valkey_binary()
    except servers.Missing as missing:
        raise Unavailable(str(missing)) from None
    with servers.running_sentinel(tmp) as watched:

        def fresh() -> Opening:
            watched.primary.tell("FLUSHALL")
            return at(watched.url)

        yield fresh
