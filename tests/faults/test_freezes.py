"""Workers that freeze for longer than a lease: none starts a job whose lease is over."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time
from asyncio.subprocess import Process
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from jobq import JobOptions, Queue
from tests.stores.valkey import servers
from tests.waiting import takes, until

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]

SECONDS = float(os.environ.get("FREEZE_SECONDS", "60"))
"""How long the workers freeze again and again."""
MAX_WAITING = 300
"""Jobs that wait in a queue at a time, so that a worker that wakes up always has some."""

_APP = """
import asyncio, os, random, time
from jobq import Queue, current_job

starts = open(f"starts.{os.getpid()}", "ab", buffering=0)

def start():
    job = current_job()
    starts.write(f"{time.time() * 1000:.3f} {job.queue} {job.id} {job.attempt}\\n".encode())

def define(queue):
    @queue.task(max_stalls=1000)
    async def coroutine() -> None:
        start()
        await asyncio.sleep(random.random() * 0.02)

    @queue.task(max_stalls=1000)
    def function() -> None:
        start()
        time.sleep(random.random() * 0.02)

    return queue

sqlite, valkey = os.environ["SQLITE_URL"], os.environ["VALKEY_URL"]
q1 = define(Queue("q1", sqlite))
q2 = define(Queue("q2", sqlite, mode="keyed"))
q3 = define(Queue("q3", valkey))
q4 = define(Queue("q4", valkey, mode="keyed"))
"""
_Attempt = tuple[str, str, int]  # queue, job, attempt


class Load:
    """Two workers on plain and keyed queues in two stores, which freeze in turn."""

    def __init__(self, folder: Path, sqlite: str, valkey: str) -> None:
        self._folder = folder
        self._environment = {**os.environ, "SQLITE_URL": sqlite, "VALKEY_URL": valkey}
        self.queues = [
            Queue("q1", sqlite),
            Queue("q2", sqlite, mode="keyed"),
            Queue("q3", valkey),
            Queue("q4", valkey, mode="keyed"),
        ]
        self.jobs = 0
        self.stalled: dict[_Attempt, int] = {}  # when other workers found the lease expired, ms
        self._positions: dict[str, str] = {}

    @asynccontextmanager
    async def workers(self, count: int) -> AsyncIterator[list[Process]]:
        (self._folder / "freezeapp.py").write_text(_APP)
        command = (sys.executable, "-c", "from jobq.cli.worker import main; main()")
        options = ("--app", "freezeapp:q1,q2,q3,q4", "--lease", "1s", "--concurrency", "20")
        processes = [
            await asyncio.create_subprocess_exec(
                *command, *options, cwd=self._folder, env=self._environment
            )
            for _ in range(count)
        ]
        try:
            yield processes
        finally:
            for process in processes:
                process.send_signal(signal.SIGCONT)
                process.terminate()
            for process in processes:
                await process.wait()

    async def produce(self, end: float) -> None:
        """Keep jobs waiting in every queue."""
        while time.monotonic() < end:
            for queue in self.queues:
                if await self.unfinished(queue) < MAX_WAITING:
                    for _ in range(40):
                        await self._add(queue)
            await takes(0.3)

    async def _add(self, queue: Queue) -> None:
        self.jobs += 1
        options: JobOptions = {"id": str(self.jobs)}
        if queue.name in ("q2", "q4"):
            options["key"] = f"k{self.jobs % 5}"
        name = "coroutine" if self.jobs % 3 else "function"
        await queue.task_by_name(name, **options).enqueue()

    async def freeze(self, workers: list[Process], end: float) -> None:
        """Stop a worker for longer than its lease, again and again."""
        while time.monotonic() < end:
            await takes(random.uniform(0.3, 1.2))
            worker = random.choice(workers)
            worker.send_signal(signal.SIGSTOP)
            await takes(random.uniform(1.2, 2.5))
            worker.send_signal(signal.SIGCONT)

    async def read(self) -> None:
        """Read the event log as it grows: a store keeps only its last events."""
        for queue in self.queues:
            store = await queue._context.store()
            while True:
                after = self._positions.get(queue.name, "0")
                page = await store.read_events(queue.qname, after=after)
                if not page.events:
                    break
                self._positions[queue.name] = page.position
                for event in page.events:
                    if event.kind == "stalled":
                        self.stalled[queue.name, event.job, event.attempt] = event.at_ms

    async def follow(self) -> None:
        while True:
            await self.read()
            await takes(0.2)

    async def unfinished(self, queue: Queue) -> int:
        return sum(n for state, n in (await queue.counts()).items() if not state.ended)

    async def all_ended(self) -> bool:
        return not any([await self.unfinished(queue) for queue in self.queues])

    def starts(self) -> list[tuple[float, _Attempt]]:
        """When each handler was called, ms."""
        lines = [
            line.split()
            for file in self._folder.glob("starts.*")
            for line in file.read_text().splitlines()
        ]
        return [(float(at), (queue, job, int(attempt))) for at, queue, job, attempt in lines]


async def test_no_worker_starts_a_job_whose_lease_is_over(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        server = stack.enter_context(servers.running(servers.valkey_or_skip(), tmp_path))
        load = Load(tmp_path, f"sqlite:///{tmp_path}/jobs.db", server.url)
        for queue in load.queues:
            await stack.enter_async_context(queue)
        async with load.workers(2) as workers:
            following = asyncio.ensure_future(load.follow())
            end = time.monotonic() + SECONDS
            await asyncio.gather(load.produce(end), load.freeze(workers, end))
            await until(load.all_ended, "all jobs end", seconds=120)
            following.cancel()
            await asyncio.wait([following])
        await load.read()
        starts = load.starts()
        stalls = Counter(queue for queue, _, _ in load.stalled)
        late = [attempt for at, attempt in starts if at > load.stalled.get(attempt, at)]
        story = f"{load.jobs} jobs, {len(starts)} starts, {dict(stalls)} stalls, {len(late)} late"
        assert not late, story
        assert len(stalls) == 4, f"no lease expired in some queue: {story}"
