"""`max_active` as workers meet it: all of their jobs run, and never too many at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from jobq import Queue, Worker
from jobq.access.quotas import TenantRules
from jobq.access.usage import TenantLimits
from jobq.core.records.jobs import JobSpec, QueueName
from jobq.server.config import ServerSettings
from jobq.server.context import ServerContext
from jobq.server.host import SERVICES, Host
from jobq.stores.base import Store
from jobq.testing import FakeWorker
from jobq_conformance.conftest import fresh_places  # noqa: F401 (a fixture)
from jobq_conformance.places import Fresh, Opening
from tests.waiting import PATIENCE_S

MOST = 2
MAIL = QueueName("default", "mail")


@pytest.fixture(params=["memory", "sqlite", "valkey", "postgres"])
def opening(
    request: pytest.FixtureRequest,
    fresh_places: Callable[[str], Fresh],  # noqa: F811
) -> Opening:
    return fresh_places(request.param)()


@asynccontextmanager
async def served(opening: Opening) -> AsyncIterator[tuple[Store, str]]:
    """A server whose tenants may run two jobs at once."""
    rules = TenantRules(TenantLimits(max_active=MOST))
    async with opening(lambda: time.time_ns() // 1_000_000) as store:
        context = ServerContext(store, ServerSettings(grpc_port=0, tenants=rules))
        async with Host(context, SERVICES) as host:
            yield store, f"127.0.0.1:{host.port}"


async def test_workers_with_more_slots_run_all_jobs_and_never_too_many(opening: Opening) -> None:
    running, seen = 0, 0
    async with served(opening) as (_, address), Queue("mail", f"grpc://{address}") as mail:

        @mail.task
        async def send(n: int) -> int:
            nonlocal running, seen
            running += 1
            seen = max(seen, running)
            await asyncio.sleep(0)
            running -= 1
            return n

        async with Worker(mail, concurrency=10), Worker(mail, concurrency=10):
            jobs = await send.enqueue_many([(n,) for n in range(60)])
            async with asyncio.timeout(PATIENCE_S):
                assert [await job.result() for job in jobs] == list(range(60))
    assert seen == MOST


async def test_a_stream_gets_the_next_job_when_one_has_ended(opening: Opening) -> None:
    async with served(opening) as (store, address):
        await store.put(
            [JobSpec(queue=MAIL, id=f"{n}", name="send", payload=b"[[],{}]") for n in range(6)]
        )
        async with FakeWorker(address, ["mail"], name="w", concurrency=6) as worker:
            for n in range(6):
                job = await worker.job(timeout=PATIENCE_S)
                assert len(worker.running) <= MOST
                if n:
                    assert await worker.complete(job, n)
