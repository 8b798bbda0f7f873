"""A worker that cannot keep up, and jobs that kill their worker. Both run in other processes."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from asyncio.subprocess import DEVNULL, PIPE, Process, create_subprocess_exec
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from bench.growth.compared import Dimension, Say, opened, put
from bench.growth.figures import Figure, Measure, flat, most
from bench.growth.program import CONCURRENCY, QUEUE
from jobq.core.records.jobs import JobKey, JobSpec, QueueName
from jobq.core.records.states import State
from jobq.core.rules.outcomes import DEFAULT_MAX_STALLS
from jobq.stores.base import Store

WORK = QueueName("default", QUEUE)
KILOBYTE = b'[["' + b"x" * 1000 + b'"],{}]'
GIVE_UP_S = 240
"""Seconds until a run with poison counts as failed. Each stall takes a lease and a new process."""


@asynccontextmanager
async def program(*args: str) -> AsyncIterator[Process]:
    """A worker process. It ends with the block."""
    process = await create_subprocess_exec(
        sys.executable,
        "-m",
        "bench.growth.program",
        *args,
        stdout=PIPE,
        stderr=DEVNULL,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


class Overload(Dimension):
    """A worker with ten slots, beside a backlog that grows faster than the worker drains it."""

    name, title = "overload", "jobs that wait for a worker that cannot keep up"
    sizes, quick = (1_000, 100_000), (500, 10_000)
    x_label = "jobs that wait for one slow worker"
    rounds = 5
    """Seconds."""
    measures: Mapping[str, Measure] = {
        # The worker holds ten jobs of 1 kB, of some 35 MB in total. 15 % are for the allocator,
        # which takes memory from the system 1 MB at a time or more.
        "memory of the worker": Measure("MB", flat(1.15)),
        "memory, last against first second": Measure("times", most(1.15)),
        "active jobs": Measure("jobs", most(CONCURRENCY)),
    }

    async def measure(self, kind: str, sizes: Sequence[int], rounds: int, say: Say) -> list[Figure]:
        found = {}
        for size in sizes:
            async with opened(kind) as (where, store):
                await put(store, (_job(f"job-{n}") for n in range(size)))
                async with program("overloaded", where.url, str(rounds)) as worker:
                    found[size] = await self._watched(store, worker)
            say(f"{kind}, {self.title}: {size:,} jobs")
        return self.figures(kind, found)

    async def _watched(self, store: Store, worker: Process) -> dict[str, float]:
        """Put jobs while the worker runs, and look at its memory and at the active jobs."""
        assert worker.stdout is not None
        memory: list[float] = []
        active = put_so_far = 0
        while line := await asyncio.wait_for(worker.stdout.readline(), 60):
            memory.append(int(line) / 1000)
            active = max(active, (await store.count(WORK))[State.ACTIVE])
            await store.put([_job(f"more-{put_so_far}-{n}") for n in range(100)])
            put_so_far += 1
        assert memory, "the worker did not start"
        first = max(memory[:5])
        return {
            "memory of the worker": max(memory),
            "memory, last against first second": max(memory[-5:]) / first,
            "active jobs": active,
        }


class Poison(Dimension):
    """Jobs that kill their worker in each run, among jobs that do not."""

    name, title = "poison", "jobs that kill their worker"
    sizes, quick = (1, 3), (1, 2)
    x_label = "jobs that kill their worker"
    rounds = 200
    """Neighbours."""
    log = False
    measures: Mapping[str, Measure] = {
        # A job may stall max_stalls times, and fails with the next stall.
        "most runs of a job that kills": Measure("runs", most(DEFAULT_MAX_STALLS + 1)),
        "jobs that kill and are not dead": Measure("jobs", most(0)),
        "neighbours that did not complete": Measure("jobs", most(0)),
        # A neighbour that stalls as often is on its last chance then, and runs alone.
        "most runs of a neighbour": Measure("runs", most(DEFAULT_MAX_STALLS + 1)),
        "until all jobs have ended": Measure("s", most(GIVE_UP_S)),
    }

    async def measure(self, kind: str, sizes: Sequence[int], rounds: int, say: Say) -> list[Figure]:
        found = {}
        for size in sizes:
            began = time.monotonic()
            with tempfile.TemporaryDirectory(prefix="jobq-bench-") as folder:
                async with opened(kind) as (where, store):
                    ledger = Path(folder) / "runs"
                    await store.put(_poisoned(size, rounds))
                    starts = await _until_ended(store, where.url, str(ledger), size + rounds)
                    found[size] = await _judged(store, ledger, size, rounds)
            found[size]["until all jobs have ended"] = time.monotonic() - began
            say(f"{kind}, {self.title}: {size}, and {starts} worker processes")
        return self.figures(kind, found)


def _job(id: str, name: str = "slow", payload: bytes = KILOBYTE) -> JobSpec:
    return JobSpec(queue=WORK, id=id, name=name, payload=payload)


def _poisoned(poison: int, neighbours: int) -> list[JobSpec]:
    """The jobs that kill are spread among the others."""
    specs = [_job(f"n{n}", "neighbour", b"[[],{}]") for n in range(neighbours)]
    step = neighbours // (poison + 1)
    for n in range(poison):
        specs.insert((n + 1) * step + n, _job(f"p{n}", "poison", b"[[],{}]"))
    return specs


async def _until_ended(store: Store, url: str, ledger: str, jobs: int) -> int:
    """Start a worker again each time it dies, until all jobs have ended. Returns the starts."""
    async with asyncio.timeout(GIVE_UP_S):
        starts = 0
        while True:
            starts += 1
            async with program("poisoned", url, ledger) as worker:
                while worker.returncode is None:
                    counts = await store.count(WORK)
                    if counts[State.COMPLETED] + counts[State.FAILED] == jobs:
                        return starts
                    await asyncio.sleep(0.1)


async def _judged(store: Store, ledger: Path, poison: int, neighbours: int) -> dict[str, float]:
    runs = Counter(ledger.read_text().splitlines())
    counts = await store.count(WORK)
    ended = await store.get([JobKey(WORK, f"p{n}") for n in range(poison)])
    dead = [
        each
        for each in ended
        if each is not None and each.failure is not None and each.failure.reason == "stalled"
    ]
    return {
        "most runs of a job that kills": max(n for line, n in runs.items() if line[0] == "p"),
        "jobs that kill and are not dead": poison - len(dead),
        "neighbours that did not complete": neighbours - counts[State.COMPLETED],
        "most runs of a neighbour": max(n for line, n in runs.items() if line[0] == "n"),
    }
