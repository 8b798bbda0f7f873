"""Streams that break at random: every job completes, and none of them counts a stall."""

from __future__ import annotations

import asyncio
import random

import pytest

from jobq.core.records.states import State
from jobq.rpc.v1 import workers_pb2 as pb
from jobq.testing import FakeWorker
from jobq.testing.fake_worker import ref
from tests.server.worker_kit import QUEUE, serving

JOBS = 150


class Unsteady(FakeWorker):
    """A worker whose stream breaks often. It confirms only jobs that it is about to run."""

    async def reopen(self, *named: pb.Lease) -> None:
        """Break the stream, forget what has arrived, and open another one."""
        await self.break_stream()
        while self.arrived():
            self._jobs.get_nowait()
        await self.open_stream(running=named)

    def confirm(self, job: pb.Lease) -> None:
        self._up.put_nowait(pb.StreamJobsRequest(received=[ref(job)]))

    async def work(self, chance: random.Random) -> None:
        """Run jobs for ever, and break the stream now and then."""
        while True:
            job = await self.job(timeout=60)
            fate = chance.random()
            if fate < 0.15:  # the push was lost, as far as this worker knows
                await self.reopen()
                continue
            self.confirm(job)
            if fate < 0.3:
                await self.reopen(job)
            assert await self.complete(job)


@pytest.mark.parametrize("seed", [1, 2])
async def test_streams_that_break_cost_no_stall_and_lose_no_job(seed: int) -> None:
    chance = random.Random(seed)
    async with serving() as place:
        await place.put(*(f"j{n}" for n in range(JOBS)))
        workers = [
            Unsteady(place.address, ["mail"], name=f"w{n}", concurrency=3, confirms=False)
            for n in range(3)
        ]
        for worker in workers:
            await worker.__aenter__()
        tasks = [asyncio.create_task(worker.work(chance)) for worker in workers]

        async def completed() -> None:
            while (await place.store.count(QUEUE)).get(State.COMPLETED, 0) < JOBS:
                done, _ = await asyncio.wait(tasks, timeout=0.05)
                for task in done:
                    task.result()  # raises what went wrong in it

        async with asyncio.timeout(60):
            await completed()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for worker in workers:
            await worker.__aexit__(None, None, None)
        for n in range(JOBS):
            kinds = await place.kinds(f"j{n}")
            assert "stalled" not in kinds
            assert kinds.count("completed") == 1
            assert kinds.count("started") == 1 + kinds.count("released")
