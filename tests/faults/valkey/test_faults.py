"""Kills, cuts and failovers under load.

No acknowledged job is lost, and a recorded stall explains every repeat run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jobq.stores import open_store
from tests.faults.load import all_ended, begin, check, produce, workers
from tests.stores.valkey import servers
from tests.stores.valkey.servers import Server
from tests.waiting import takes, wait_until

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300)]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    options = ("--appendonly", "yes", "--appendfsync", "always")
    with servers.running(servers.valkey_binary(), tmp_path, *options) as running:
        yield running


async def every(seconds: float, times: int, act: Callable[[], object]) -> None:
    """Do something now and again."""
    for _ in range(times):
        await takes(seconds)
        await asyncio.to_thread(act)


async def test_workers_that_are_killed_lose_no_job(server: Server) -> None:
    await begin(server.url)
    async with open_store(server.url) as store, workers(server.url, 3) as group:
        killing = asyncio.create_task(every(1.5, 8, group.kill_one))
        ids = await produce(
            store, 4000, pace=0.05
        )  # for as long as workers are killed: an idle one leaves nothing behind
        await killing
        await all_ended(store, len(ids))
    kinds = await check(server.url, ids)
    assert kinds["stalled"] > 0
    assert (
        kinds["started"]
        == kinds["completed"] + kinds["stalled"] + kinds["retried"] + kinds["released"]
    )


async def test_a_flushed_library_and_cut_connections_lose_no_job(server: Server) -> None:
    await begin(server.url)
    async with open_store(server.url) as store, workers(server.url) as _:
        flushing = asyncio.create_task(every(0.5, 12, lambda: server.tell("FUNCTION", "FLUSH")))
        cutting = asyncio.create_task(
            every(0.7, 9, lambda: server.tell("CLIENT", "KILL", "TYPE", "normal"))
        )
        muting = asyncio.create_task(
            every(1.1, 5, lambda: server.tell("CLIENT", "KILL", "TYPE", "pubsub"))
        )
        ids = await produce(store, 3000)
        await asyncio.gather(flushing, cutting, muting)
        await all_ended(store, len(ids))
    kinds = await check(server.url, ids)
    assert (
        kinds["started"]
        == kinds["completed"] + kinds["stalled"] + kinds["retried"] + kinds["released"]
    )


async def test_a_server_that_crashes_and_comes_back_loses_no_job(server: Server) -> None:
    await begin(server.url)

    def crash() -> None:
        server.kill()
        server.start()

    async with open_store(server.url) as store, workers(server.url) as _:
        crashing = asyncio.create_task(every(2, 3, crash))
        ids = await produce(store, 3000)
        await crashing
        await all_ended(store, len(ids))
    await check(server.url, ids)


async def test_a_frozen_server_is_survived(server: Server) -> None:
    await begin(server.url)
    url = f"{server.url}?timeout=1"
    async with open_store(url) as store, workers(url) as _:

        async def freeze() -> None:
            for _ in range(2):
                await takes(1.5)
                server.freeze()
                await takes(3)
                server.thaw()

        freezing = asyncio.create_task(freeze())
        ids = await produce(store, 2000)
        await freezing
        await all_ended(store, len(ids))
    await check(server.url, ids)


async def test_a_cluster_that_loses_a_primary_loses_no_job_it_confirmed(tmp_path: Path) -> None:
    with servers.running_cluster(tmp_path) as cluster:
        url = f"{cluster.url}?wait=1&timeout=2"
        await begin(url)
        async with open_store(url) as store, workers(url) as _:
            node = await store.servers.node_of("jq:{faults:faults}")  # type: ignore[attr-defined]
            primary = next(s for s in cluster.primaries if s.port == node[1])
            replica = cluster.replicas[cluster.primaries.index(primary)]

            def lose_and_replace() -> None:
                # Until the lost node is back as a replica, ?wait=1 has no replica to wait for and
                # calls are not confirmed.
                primary.kill()
                wait_until(lambda: b"master" in replica.tell("ROLE"), "the promoted replica")
                primary.start()

            killing = asyncio.create_task(every(2, 1, lose_and_replace))
            ids = await produce(store, 2500)
            await killing
            await all_ended(store, len(ids))
        await check(url, ids)


async def test_a_failover_by_sentinel_loses_no_job_it_confirmed(tmp_path: Path) -> None:
    with servers.running_sentinel(tmp_path) as watched:
        url = f"{watched.url}?timeout=2"
        await begin(url)
        confirmed = f"{url}&wait=1"
        async with open_store(confirmed) as store, workers(confirmed) as _:
            # An ordered failover: the old primary follows the new one, so ?wait=1 has a replica.
            switching = asyncio.create_task(
                every(2, 1, lambda: watched.sentinels[0].tell("SENTINEL", "FAILOVER", "jobs"))
            )
            ids = await produce(store, 2500)
            await switching
            await all_ended(store, len(ids))
        await check(url, ids)
