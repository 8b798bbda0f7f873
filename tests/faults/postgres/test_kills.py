"""kill -9 of workers, of backends and of the whole server, under load, with durable commits.

No acknowledged job is lost, and an event explains every repeated run.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Callable, Iterator

import psycopg
import pytest

from jobq.stores import open_store
from tests.faults.load import Workers, all_ended, begin, check, produce, workers
from tests.stores.postgres.servers import FAST, Server, ask, postgres_or_skip, running
from tests.waiting import takes, wait_until

pytestmark = [pytest.mark.faults, pytest.mark.timeout(400)]

DURABLE = {**FAST, "fsync": "on", "full_page_writes": "on", "synchronous_commit": "on"}


@pytest.fixture
def server() -> Iterator[Server]:
    """A server that has every acknowledged commit on its disk."""
    postgres_or_skip()
    with running(DURABLE) as server:
        assert ask(server.url, "show fsync") == [("on",)]
        yield server


def kill_worker(server: Server, group: Workers) -> None:
    """Kill a worker that runs jobs."""
    active = "select distinct worker from jobq.jobs_hot where state = 3"

    def busy() -> list[str]:
        return [name for (name,) in ask(server.url, active) if name in group.running]

    group.kill_one(random.choice(wait_until(busy, "a worker to run a job")))


def kill_backend(server: Server, group: Workers) -> None:
    """Kill the server process of a connection of jobq. PostgreSQL then ends all the others too."""
    pids = "select pid from pg_stat_activity where application_name = 'jobq'"
    found = wait_until(lambda: ask(server.url, pids), "jobq to connect")
    (victim,) = random.choice(found)
    os.kill(victim, signal.SIGKILL)
    wait_until(lambda: _answers(server.url), "the server to recover")


def kill_server(server: Server, group: Workers) -> None:
    """Kill the server with all its processes, and start it again on the same data."""
    server.kill()
    server.start()


def _answers(url: str) -> bool:
    try:
        return ask(url, "select 1") == [(1,)]
    except psycopg.OperationalError:
        return False


KILLS: dict[str, list[Callable[[Server, Workers], None]]] = {
    "workers": [kill_worker] * 8,
    "backends": [kill_backend] * 8,
    "the server": [kill_server] * 4,
    "all of them": [kill_worker, kill_backend, kill_worker, kill_server] * 2,
}


@pytest.mark.parametrize("what", KILLS)
async def test_kills_lose_no_job_and_explain_every_repeat(server: Server, what: str) -> None:
    await begin(server.url)
    async with open_store(server.url) as store, workers(server.url, 3) as group:

        async def kill() -> None:
            for strike in KILLS[what]:
                await takes(random.uniform(0.5, 1.5))
                await asyncio.to_thread(strike, server, group)

        killing = asyncio.create_task(kill())
        ids: list[str] = []
        while not killing.done():  # an idle worker that is killed leaves nothing behind
            ids += await produce(store, 200, pace=0.06, first=len(ids))
        await killing
        await all_ended(store, len(ids))
    kinds = await check(server.url, ids)
    repeats = kinds["stalled"] + kinds["retried"] + kinds["released"]
    assert kinds["started"] == kinds["completed"] + repeats
    assert kinds["retried"] > 0  # the handler raises in one of fifty jobs
    if "workers" in what:
        assert kinds["stalled"] > 0
