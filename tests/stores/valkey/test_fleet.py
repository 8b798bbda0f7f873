"""Many idle workers, and workers whose server stops and starts again."""

from __future__ import annotations

import asyncio
from itertools import count, pairwise
from pathlib import Path

import pytest

from jobq import Queue, Worker
from jobq.core.records.jobs import QueueName
from jobq.core.records.queues import QueueConfig
from jobq.errors import StoreUnavailable
from jobq.stores import open_store
from jobq.stores.valkey.keys import partition_of
from jobq.stores.valkey.presence import WORKERS
from jobq.stores.valkey.store import ValkeyStore
from tests.stores.valkey import servers
from tests.stores.valkey.jobs import done, exchange, spec, take
from tests.stores.valkey.servers import Server, blocked_clients
from tests.waiting import nothing_happens, takes, until, until_it_succeeds

PARTS = 12
FLEET = 500
"""Sleeping workers. Each has a connection, and `ulimit -n` is often 1,024."""


async def fall_asleep(store: ValkeyStore, queue: QueueName, ms: int) -> list[asyncio.Task[bool]]:
    names = [f"w{n}" for n in range(FLEET)]
    for name in names:
        assert await take(store, queue, worker=name) == []
    asleep = [
        asyncio.create_task(store.sleep([queue], worker=name, slots=1, timeout_ms=ms))
        for name in names
    ]
    return asleep


async def all_blocked(server: Server) -> None:
    await until(lambda: blocked_clients(server) >= FLEET, "the whole fleet to sleep at the server")


async def test_one_job_wakes_one_worker_of_a_large_fleet(
    store: ValkeyStore, queue: QueueName, server: Server
) -> None:
    asleep = await fall_asleep(store, queue, 60_000)
    await all_blocked(server)
    await store.put([spec(queue, "a")])
    done, waiting = await asyncio.wait(asleep, timeout=1.5)
    assert 1 <= len(done) <= 3  # the woken worker does not claim, so two deputies look
    for task in waiting:
        task.cancel()


async def test_as_many_jobs_as_sleepers_wake_all_of_them(
    store: ValkeyStore, queue: QueueName, server: Server
) -> None:
    asleep = await fall_asleep(store, queue, 60_000)
    await all_blocked(server)
    await store.put([spec(queue, f"j{n}") for n in range(FLEET)])
    async with asyncio.timeout(20):
        assert all(await asyncio.gather(*asleep))


async def test_a_sleeping_fleet_sends_few_commands(
    store: ValkeyStore, queue: QueueName, server: Server
) -> None:
    asleep = await fall_asleep(store, queue, 60_000)
    await all_blocked(server)
    server.tell("CONFIG", "RESETSTAT")
    await nothing_happens(2, "the sleeping fleet sends commands")
    calls = sum(
        int(line.split(b"calls=")[1].split(b",")[0])
        for line in server.tell("INFO", "commandstats").splitlines()
        if b"calls=" in line and b"info" not in line and b"config" not in line
    )
    assert calls <= 2 * FLEET  # one per worker and second
    for task in asleep:
        task.cancel()


async def test_a_tick_looks_at_a_bounded_number_of_workers(
    store: ValkeyStore, server: Server
) -> None:
    workers = store.partitions.space.workers
    gone = [word for n in range(3_000) for word in (f"gone {n}", "1\n\n{}")]
    server.tell("HSET", workers, *gone)
    left = [3_000]
    while left[-1]:
        await store.tick()
        left.append(int(server.tell("HLEN", workers).strip(b":\r\n")))
        assert len(left) < 30
    swept = [before - after for before, after in pairwise(left)]
    assert max(swept) < 2 * WORKERS


async def test_a_handle_stays_connected_only_to_the_primaries_it_calls(tmp_path: Path) -> None:
    """Otherwise the connections of a Cluster grow with workers times primaries."""
    servers.valkey_or_skip()
    with servers.running_cluster(tmp_path, replicas=0) as nodes:
        async with open_store(nodes.url) as store:
            assert isinstance(store, ValkeyStore)
            space, node_of = store.partitions.space, store.servers.node_of
            called = {await node_of(space.layout), await node_of(space.queues)}
            near = (QueueName("tests", f"near{n}") for n in count())
            queue = next(q for q in near if store.servers.known(space.prefix(q)) in called)
            await store.put([spec(queue, "a")])
            assert len(await take(store, queue)) == 1
            ports = {port for _, port in called}
            unused = [node for node in nodes.primaries if node.port not in ports]
            assert unused
            for node in unused:
                await until(
                    lambda node=node: b"connected_clients:1\r" in node.tell("INFO", "clients"),  # type: ignore[misc]
                    "connections that only checked the server to be closed",
                )


async def test_a_worker_goes_on_with_other_partitions_while_a_primary_is_lost(
    tmp_path: Path,
) -> None:
    servers.valkey_or_skip()
    with servers.running_cluster(tmp_path, replicas=0) as nodes:
        for node in nodes.primaries:
            node.tell("CONFIG", "SET", "cluster-require-full-coverage", "no")
        async with open_store(nodes.url) as store:
            assert isinstance(store, ValkeyStore)
            queue, space = QueueName("tests", "parted"), store.partitions.space
            await store.declare(queue, QueueConfig(partitions=PARTS))
            assert await take(store, queue) == []  # the first call of a worker goes everywhere
            home = await store.servers.node_of(space.prefix(queue))
            lost = next(node for node in nodes.primaries if node.port != home[1])
            ids = [f"j{n}" for n in range(60)]
            parts = {id: space.partition_prefix(queue, partition_of(None, id, PARTS)) for id in ids}
            there = {id for id in ids if store.servers.known(parts[id]) == ("127.0.0.1", lost.port)}
            await store.put([spec(queue, id) for id in ids])
            lost.kill()
            leases = await take(store, queue, 100)
            assert there
            assert {lease.id for lease in leases} == set(ids) - there
            settled = await exchange(store, queue, *(done(lease) for lease in leases), n=100)
            assert (settled.stale, settled.leases) == ((), ())
            idle = await exchange(store, queue, n=100)
            assert idle.asleep
            assert idle.next_due_ms is not None
            assert idle.next_due_ms <= 500  # it looks again soon


async def test_a_worker_works_again_within_five_seconds_of_its_servers_return(
    tmp_path: Path,
) -> None:
    options = ("--appendonly", "yes", "--appendfsync", "always")
    with servers.running(servers.valkey_binary(), tmp_path, *options) as server:
        queue = Queue("again", server.url)

        @queue.task
        async def double(n: int) -> int:
            return 2 * n

        async with queue, Worker(queue, concurrency=5):
            assert await double.options(call_timeout=20).call(1) == 2
            server.kill()
            for _ in range(5):  # without a server, loops wait longer before each retry
                with pytest.raises(StoreUnavailable):
                    await double.enqueue(0)
                await takes(0.3)
            server.start()
            answer = await until_it_succeeds(
                lambda: double.options(call_timeout=20).call(21),
                StoreUnavailable,
                "the worker to work again",
                seconds=5,
            )
            assert answer == 42
