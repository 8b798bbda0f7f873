"""A producer and a worker that go on while a test breaks their server."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from jobq import Queue, State, Worker
from jobq.core.records.jobs import QueueName
from jobq.errors import StoreUnavailable
from jobq.stores import open_store
from jobq_conformance.audit import audit
from tests.waiting import takes, until

LEASE_S = 3.0
NAME = QueueName("default", "shop")


class Load:
    """Enqueues numbered jobs all the time. `accepted` has those whose enqueue has returned."""

    def __init__(self, queue: Queue, worker: Worker, url: str) -> None:
        self.queue = queue
        self.worker = worker
        self.url = url
        self.accepted: list[str] = []
        self.runs: Counter[str] = Counter()
        self.refused = 0
        self._producing = True

    async def produce(self) -> None:
        """Enqueue one job after the other, and repeat those whose outcome is unknown."""
        task = self.queue.task_by_name("work")
        n = 0
        while self._producing:
            try:
                await task.options(id=f"j{n}").enqueue(f"j{n}")
            except StoreUnavailable:
                self.refused += 1
                await takes(0.05)
            else:
                self.accepted.append(f"j{n}")
                n += 1
                await takes(0.005)

    async def goes_on(self) -> None:
        """Return when jobs that are enqueued from now on are accepted and run."""
        before = len(self.accepted)
        await until(lambda: len(self.accepted) > before, "jobs to be accepted again")
        last = self.accepted[-1]
        await until(lambda: self.runs[last], "jobs to run again")

    def stop(self) -> None:
        """Enqueue no more."""
        self._producing = False


@asynccontextmanager
async def load_on(url: str) -> AsyncIterator[Load]:
    """Runs jobs while the context lasts. At its end, every accepted job must have completed."""
    async with Queue("shop", url) as queue:

        @queue.task
        async def work(id: str) -> str:
            load.runs[id] += 1
            return id

        worker = Worker(queue, lease=LEASE_S, drain=1)
        load = Load(queue, worker, url)
        async with worker:
            producing = asyncio.create_task(load.produce())
            try:
                await until(lambda: len(load.runs) > 20, "the load to begin")
                yield load
            finally:
                load.stop()
                await producing
            await until(lambda: _ended(load), "all accepted jobs to end", seconds=60)
    async with open_store(url) as store:
        counts = await store.count(NAME)
        assert counts[State.FAILED] == counts[State.CANCELLED] == 0
        assert counts[State.COMPLETED] >= len(load.accepted)
        assert set(load.accepted) <= set(load.runs)
        await audit(store, NAME)


async def _ended(load: Load) -> bool:
    async with open_store(load.url) as store:
        try:
            counts = await store.count(NAME)
        except StoreUnavailable:
            return False
    return not (counts[State.WAITING] or counts[State.ACTIVE] or counts[State.DELAYED])


async def stops_within(worker: Worker, seconds: float) -> None:
    """Stop the worker and check how long that takes."""
    begun = time.monotonic()
    async with asyncio.timeout(seconds):
        await worker.stop()
    assert time.monotonic() - begun < seconds
