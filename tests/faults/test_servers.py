"""Two jq-servers on one PostgreSQL, behind a proxy, under load: kills, cuts and deafness.

No acknowledged job is lost, and a recorded stall explains every repeat run.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

import pytest

from jobq.stores import open_store
from tests.faults.load import QUEUE, all_ended, begin, check, produce, workers
from tests.server.processes import server_process
from tests.stores.postgres import servers
from tests.stores.postgres.proxy import Proxy, proxy_to
from tests.waiting import takes

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]

JOBS = 20_000


async def every(seconds: float, times: int, act: Callable[[], object]) -> None:
    """Do something now and again."""
    for _ in range(times):
        await takes(seconds)
        await asyncio.to_thread(act)


async def go_deaf(proxies: list[Proxy]) -> None:
    """One proxy after the other swallows all bytes for a while, without closing anything."""
    for proxy in proxies:
        await takes(6)
        proxy.swallow()
        await takes(4)
        proxy.restore()


async def test_servers_and_workers_that_are_killed_lose_no_job_and_nobody_stays_deaf() -> None:
    servers.postgres_or_skip()
    with (
        servers.running(servers.FAST) as database,
        server_process(database.url, beat_ms=500, deaf_ms=2_000) as one,
        server_process(database.url, beat_ms=500, deaf_ms=2_000) as other,
        proxy_to(one.port) as first,
        proxy_to(other.port) as second,
    ):
        url = f"grpc://127.0.0.1:{first.port},127.0.0.1:{second.port}?timeout=5"
        await begin(database.url)
        turns = itertools.cycle([one, other])
        async with open_store(url) as store, workers(url, 4) as group:
            faults = asyncio.gather(
                every(8, 5, lambda: next(turns).restart()),
                every(2, 20, group.kill_one),
                every(3, 12, first.cut),  # as a proxy that cuts streams
                go_deaf([first, second]),
            )
            ids = await produce(store, JOBS, pace=0.02)
            await faults
            await all_ended(store, len(ids))
            # Nobody is deaf: every worker that lives gets a share of the next jobs.
            more = await produce(store, 2_000, pace=0.0, first=JOBS)
            await all_ended(store, len(ids) + len(more))
            names = set(group.running)
        kinds = await check(database.url, ids + more)
        assert kinds["stalled"] > 0
        assert (
            kinds["started"]
            == kinds["completed"] + kinds["stalled"] + kinds["retried"] + kinds["released"]
        )
        assert await ran(database.url, JOBS) >= names


async def ran(url: str, first: int) -> set[str]:
    """The workers that have completed a job of this number or a later one."""
    found: set[str] = set()
    async with open_store(url) as store:
        position = "0"
        while (page := await store.read_events(QUEUE, after=position, limit=5000)).events:
            position = page.position
            found |= {
                str(event.worker)
                for event in page.events
                if event.kind == "completed" and int(event.job[1:]) >= first
            }
    return found
