"""A store carries its layout: data of jobq 0.1 is taken over, that of a newer jobq is refused."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import hiredis
import pytest

from jobq import __version__
from jobq.core.records.commands import Rerun, SendSignal
from jobq.core.records.jobs import JobKey, QueueName
from jobq.core.records.states import State
from jobq.core.records.workers import WorkerRecord
from jobq.errors import ConfigError, CorruptStore
from jobq.stores import open_store
from jobq.stores.valkey.layout import STAMP
from jobq.stores.valkey.store import ValkeyStore
from tests.stores.valkey import servers
from tests.stores.valkey.jobs import spec
from tests.stores.written_by_0_1 import (
    KEYED,
    RUNNABLE,
    RUNNABLE_KEYED,
    WORK,
    WRITTEN_MS,
    check_jobs,
    drain,
)

KEY = "jq:{layout}"
PARTED, RATED = QueueName("default", "parted"), QueueName("default", "rated")


def replay(server: servers.Server, commands: Path) -> None:
    """Write recorded data to a server: a command per line, its arguments as Latin-1 text."""
    lines = [json.loads(line) for line in commands.read_text("utf-8").splitlines()]
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        for words in lines:
            packed = tuple(word.encode("latin-1") for word in words)
            connection.sendall(hiredis.pack_command(packed))
        reader, replies = hiredis.Reader(), 0
        while replies < len(lines):
            reader.feed(connection.recv(1 << 16))
            while (reply := reader.gets()) is not False:
                assert not isinstance(reply, Exception), reply
                replies += 1


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.ClusterOf]:
    servers.valkey_or_skip()
    with servers.running_cluster(tmp_path_factory.mktemp("layouts"), replicas=0) as nodes:
        yield nodes


def stamp(server: servers.Server, layout: int, oldest: int) -> None:
    """What a newer jobq may have written."""
    server.tell("SET", KEY, json.dumps({"layout": layout, "oldest": oldest, "release": "9.1.0"}))


# ── data of jobq 0.1 ──────────────────────────────────────────────────────────────────────────────


async def test_an_old_store_gets_a_layout_and_loses_nothing(server: servers.Server) -> None:
    replay(server, Path(__file__).with_name("written_by_0_1.jsonl"))
    now_ms = WRITTEN_MS + 1
    async with open_store(server.url, clock=lambda: now_ms) as store:
        assert STAMP in server.tell("GET", KEY)
        await check_jobs(store)
        position = (await store.readers(WORK))["relay"]
        events = (await store.read_events(WORK, after=position)).events
        assert [str(event.kind) for event in events[:4]] == ["started"] * 4
        assert {event.number for event in events} == {0}  # jobq 0.1 did not number them
        await store.put([spec(WORK, "new")])
        (event,) = (await store.read_events(WORK, after=events[-1].position)).events
        assert (event.job, event.number) == ("new", 20)  # the log held 19
        now_ms += 7_200_000  # delays and leases are over
        assert await store.alter([Rerun(job=JobKey(WORK, "failed"))])
        await store.alter([SendSignal(job=JobKey(RATED, "r1"), name="go", value=b"1")])
        ended = await drain(store, WORK, KEYED, PARTED, RATED)
        others = ("new", "p0", "p1", "p2", "p3", "r1", "r2")
        assert ended == sorted(RUNNABLE + RUNNABLE_KEYED + others)
        assert (await store.count(WORK))[State.FAILED] == 1  # `late`: its ttl passed


async def test_an_old_store_is_not_taken_over_while_its_workers_run(
    server: servers.Server,
) -> None:
    record = WorkerRecord(name="left", host="h", pid=1, queues=(WORK,), concurrency=1)
    async with open_store(server.url) as store:
        await store.put([spec(WORK, "a")])
        await store.beat(record, ttl_ms=60_000)
        server.tell("DEL", KEY)  # jobq 0.1 wrote none
    with pytest.raises(ConfigError, match=r"1 of its workers are running \(left\): stop all"):
        async with open_store(server.url):
            pass
    assert server.tell("EXISTS", KEY) == b":0\r\n"


async def test_a_store_that_was_flushed_under_running_workers_is_used_again(
    server: servers.Server,
) -> None:
    record = WorkerRecord(
        name="left", host="h", pid=1, queues=(WORK,), concurrency=1, incarnation="a.b.c"
    )
    async with open_store(server.url) as store:
        server.tell("FLUSHALL")
        await store.beat(record, ttl_ms=60_000)
        await store.put([spec(WORK, "a")])
        async with open_store(server.url) as another:
            assert (await another.count(WORK))[State.WAITING] == 1
    assert STAMP in server.tell("GET", KEY)


# ── data of a newer jobq ──────────────────────────────────────────────────────────────────────────


async def test_a_new_store_says_which_layout_it_has(
    store: ValkeyStore, server: servers.Server
) -> None:
    assert json.loads(STAMP) == {"layout": 2, "oldest": 2, "release": __version__}
    assert STAMP in server.tell("GET", KEY)


async def test_a_store_of_a_newer_layout_is_refused_with_both_versions(
    server: servers.Server,
) -> None:
    stamp(server, 9, 8)
    words = rf"has layout 9, from jobq 9\.1\.0, and this is jobq {__version__}.* layouts up to 2"
    with pytest.raises(ConfigError, match=words):
        async with open_store(server.url):
            pass


async def test_a_store_of_a_newer_layout_that_only_adds_is_used(server: servers.Server) -> None:
    stamp(server, 9, 2)
    async with open_store(server.url) as store:
        await store.put([spec(WORK, "a")])
    assert b"9.1.0" in server.tell("GET", KEY)


async def test_an_open_handle_stops_when_a_newer_jobq_takes_its_library_away(
    store: ValkeyStore, server: servers.Server
) -> None:
    await store.put([spec(WORK, "a")])
    stamp(server, 9, 9)
    server.tell("FUNCTION", "FLUSH")
    with pytest.raises(ConfigError, match=r"has layout 9, from jobq 9\.1\.0"):
        await store.put([spec(WORK, "b")])


async def test_an_older_layout_is_raised_and_the_older_library_deleted(
    server: servers.Server,
) -> None:
    stamp(server, 1, 1)
    old = "#!lua name=jobq_v1\nredis.register_function('jobq_v1_put', function() return 1 end)"
    assert b"jobq_v1" in server.tell("FUNCTION", "LOAD", old)
    async with open_store(server.url) as store:
        await store.put([spec(WORK, "a")])
    assert STAMP in server.tell("GET", KEY)
    assert b"jobq_v1" not in server.tell("FUNCTION", "LIST")


async def test_a_layout_that_cannot_be_read_is_reported(server: servers.Server) -> None:
    server.tell("SET", KEY, "rubbish")
    with pytest.raises(CorruptStore, match="does not say which layout its jobs have"):
        async with open_store(server.url):
            pass


async def test_stores_of_one_server_have_layouts_of_their_own(server: servers.Server) -> None:
    stamp(server, 9, 9)
    async with open_store(f"{server.url}?prefix=other") as store:
        await store.put([spec(WORK, "a")])


async def test_every_node_of_a_cluster_is_held_to_the_layout(cluster: servers.ClusterOf) -> None:
    async with open_store(cluster.url) as store:
        assert isinstance(store, ValkeyStore)
        newer = b'{"layout":9,"oldest":9,"release":"9.1.0"}'
        nodes = await store.servers.primaries()
        connections = [await store.servers.connection(node) for node in nodes]
        await store.servers.command(KEY, "SET", KEY, newer)
        for node, connection in zip(nodes, connections, strict=True):
            connection.close()
            with pytest.raises(ConfigError, match="has layout 9"):
                await store.servers.connection(node)


async def test_a_node_is_of_use_while_the_node_with_the_layout_is_down(
    cluster: servers.ClusterOf,
) -> None:
    async with open_store(cluster.url) as store:
        assert isinstance(store, ValkeyStore)
        down = await store.servers.node_of(KEY)
        nodes = await store.servers.primaries()
        next(node for node in cluster.primaries if node.port == down[1]).kill()
        for node in nodes:
            if node != down:
                (await store.servers.connection(node)).close()
                assert not (await store.servers.connection(node)).closed
