"""Servers and jobs for tests of WorkerService."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import count

from jobq.core.records.jobs import Claim, JobKey, JobRecord, JobSpec, QueueName
from jobq.server.config import ServerSettings
from jobq.server.context import ServerContext
from jobq.server.host import Host
from jobq.server.workers import WorkerService
from jobq.stores import open_store
from jobq.stores.base import Store

QUEUE = QueueName("default", "mail")
SHORT_MS = 1_500
"""A lease that ends soon."""
_names = count()


class Place:
    """A server, and its store as the test sees it."""

    def __init__(self, store: Store, host: Host) -> None:
        self.store = store
        self.host = host
        self.address = f"127.0.0.1:{host.port}"

    async def put(self, *ids: str, **options: object) -> None:
        """Put jobs into the queue."""
        specs = [
            JobSpec(queue=QUEUE, id=id, name="send", payload=b"[[],{}]", **options)  # type: ignore[arg-type]
            for id in ids
        ]
        await self.store.put(specs)

    async def get(self, id: str) -> JobRecord:
        """A job that exists."""
        (record,) = await self.store.get([JobKey(QUEUE, id)])
        assert record is not None
        return record

    async def states(self, *ids: str) -> list[str]:
        """The states of jobs."""
        return [(await self.get(id)).state.value for id in ids]

    async def kinds(self, id: str) -> list[str]:
        """What happened to a job, as the log says."""
        page = await self.store.read_events(QUEUE, after="0")
        return [str(event.kind) for event in page.events if event.job == id]

    async def stall(self, id: str, times: int) -> None:
        """Let a job lose its worker this often."""
        for n in range(times):
            claim = Claim(queues=(QUEUE,), limit=1, lease_ms=1)
            settled = await self.store.settle([], worker="dead", call=f"{id}{n}", then=claim)
            assert [lease.id for lease in settled.leases] == [id]
            end = time.monotonic() + 10
            while (await self.get(id)).stalls <= n:
                assert time.monotonic() < end
                await self.store.tick()


@asynccontextmanager
async def serving(
    *, url: str | None = None, lease_ms: int = 15_000, upkeep: bool = False
) -> AsyncIterator[Place]:
    """A server on loopback, with a store in memory unless there is a `url`."""
    async with open_store(url or f"memory://workersvc-{next(_names)}") as store:
        settings = ServerSettings(grpc_port=0, lease_ms=lease_ms, shutdown_grace_s=5, upkeep=upkeep)
        async with Host(ServerContext(store, settings), [WorkerService]) as host:
            yield Place(store, host)


def ids(jobs: Sequence[object]) -> list[str]:
    """The ids of jobs."""
    return [job.id for job in jobs]  # type: ignore[attr-defined]
