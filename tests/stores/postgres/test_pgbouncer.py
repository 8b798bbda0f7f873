"""?listen=no behind a PgBouncer in transaction mode: every transaction may get another server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from jobq import Queue, Worker
from jobq.core.records.jobs import Claim, JobSpec, QueueName
from jobq.stores import open_store
from jobq.stores.base import Store
from tests.stores.postgres import servers
from tests.stores.postgres.servers import Server, ask


@pytest.fixture
def url(server: Server) -> Iterator[str]:
    """An address through a PgBouncer with two connections for all clients."""
    ask(server.url, "drop schema if exists jobq cascade")
    with servers.running_bouncer(server, connections=2) as bouncer:
        yield f"{bouncer.url}?listen=no"


@pytest.fixture
async def handles(url: str) -> AsyncIterator[list[Store]]:
    """More handles than server connections."""
    opened = [open_store(url) for _ in range(6)]
    for store in opened:
        await store.migrate()
    yield opened
    for store in opened:
        await store.aclose()


def spec(n: int) -> JobSpec:
    return JobSpec(id=f"j{n}", queue=QueueName("t", "q"), name="add", payload=b"1")


async def test_many_handles_share_few_server_connections(
    handles: list[Store], server: Server
) -> None:
    await asyncio.gather(*(store.put([spec(n)]) for n, store in enumerate(handles)))
    claim = Claim(queues=(QueueName("t", "q"),), limit=2, lease_ms=15_000)
    settled = await asyncio.gather(
        *(s.settle([], worker=f"w{n}", call="1", then=claim) for n, s in enumerate(handles))
    )
    claimed = [lease.id for each in settled for lease in each.leases]
    assert sorted(claimed) == [f"j{n}" for n in range(6)]
    prepared = "select count(*) from pg_stat_activity where application_name = 'jobq'"
    ((n,),) = ask(server.url, prepared)
    assert n <= 2


async def test_settings_of_the_store_do_not_leak_to_other_clients_of_the_pool(
    handles: list[Store], url: str
) -> None:
    await handles[0].put([spec(1)])
    plain = url.removesuffix("?listen=no")
    for _ in range(4):
        assert ask(plain, "show search_path") == [('"$user", public',)]
        assert ask(plain, "show statement_timeout") == [("0",)]


async def test_a_worker_runs_jobs_and_a_caller_gets_the_result(url: str) -> None:
    async with Queue("shop", url) as queue:

        @queue.task
        async def add(a: int, b: int) -> int:
            return a + b

        async with Worker(queue):
            assert await asyncio.wait_for(add.call(2, 3), 20) == 5
