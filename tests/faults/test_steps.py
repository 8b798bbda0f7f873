"""Workers that are killed in the middle of steps: nothing that is recorded is done again."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from jobq import Queue, State
from tests.stores.valkey import servers
from tests.waiting import takes, until

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]

SECONDS = float(os.environ.get("STEP_FAULT_SECONDS", "20"))
"""How long workers are killed."""
JOBS, STEPS = 300, 5

_APP = """
import asyncio, random, sys, time
from jobq import Queue, Worker, current_job

queue = Queue("steps", sys.argv[1])
log = open("effects", "ab", buffering=0)  # each line is one write at the end of the file

def write(kind, name):
    log.write(f"{kind} {current_job().id} {name}\\n".encode())

async def effect(n):
    await asyncio.sleep(random.random() * 0.3)
    write("done", n)
    return n

def plain_effect(n):
    time.sleep(random.random() * 0.3)
    write("done", n)
    return n

@queue.task(max_stalls=10_000)
async def coroutine() -> list[int]:
    results = []
    for n in range(5):
        results.append(await current_job().step(f"step {n}", effect, n))
        write("recorded", n)
        await current_job().save(n)
    return results

@queue.task(max_stalls=10_000)
def function() -> list[int]:
    results = []
    for n in range(5):
        results.append(current_job().sync.step(f"step {n}", plain_effect, n))
        write("recorded", n)
        current_job().sync.save(n)
    return results

asyncio.run(Worker(queue, concurrency=10, lease=1, drain=5).run())
"""


class Workers:
    """Worker processes that are killed and replaced."""

    def __init__(self, folder: Path, url: str) -> None:
        self._folder, self._url = folder, url
        (folder / "app.py").write_text(_APP)
        self.kills = 0
        self.running = [self._start() for _ in range(2)]

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "app.py", self._url], cwd=self._folder)

    def kill_one(self) -> None:
        """SIGKILL, and another takes its place."""
        n = random.randrange(len(self.running))
        self.running[n].kill()
        self.running[n].wait()
        self.running[n] = self._start()
        self.kills += 1

    def stop(self) -> None:
        for process in self.running:
            process.kill()
            process.wait()


@contextmanager
def place(kind: str, folder: Path) -> Iterator[str]:
    """The URL of a store."""
    if kind == "sqlite":
        yield f"sqlite:///{folder}/jobs.db"
        return
    with servers.running(servers.valkey_or_skip(), folder) as server:
        yield server.url


@pytest.mark.parametrize("kind", ["sqlite", "valkey"])
async def test_a_step_that_was_recorded_is_not_executed_again(kind: str, tmp_path: Path) -> None:
    with place(kind, tmp_path) as url:
        async with Queue("steps", url) as queue:
            for n in range(JOBS):
                name = "coroutine" if n % 2 else "function"
                await queue.task_by_name(name, id=f"{n}").enqueue()
            workers = Workers(tmp_path, url)
            try:
                end = time.monotonic() + SECONDS
                while time.monotonic() < end:
                    await takes(random.uniform(1, 2))  # a worker needs about a second to start
                    workers.kill_one()

                async def all_completed() -> bool:
                    return (await queue.counts())[State.COMPLETED] == JOBS

                await until(all_completed, "all jobs", seconds=180)
            finally:
                await asyncio.to_thread(workers.stop)
            infos = [await queue.job(f"{n}").info() for n in range(JOBS)]
    assert {tuple(info.result) for info in infos} == {tuple(range(STEPS))}
    assert {len(info.steps) for info in infos} == {STEPS}
    assert {info.saved for info in infos} == {STEPS - 1}
    recorded: set[tuple[str, str]] = set()
    done: Counter[tuple[str, str]] = Counter()
    for line in (tmp_path / "effects").read_text().splitlines():
        what, job, step = line.split()
        if what == "recorded":
            recorded.add((job, step))
        else:
            assert (job, step) not in recorded, f"step {step} of job {job} was done again"
            done[job, step] += 1
    assert len(done) == JOBS * STEPS
    stalls = sum(info.stalls for info in infos)
    repeated = sum(n - 1 for n in done.values())
    assert stalls > 0, f"none of {workers.kills} kills met a running job"
    # Each lost run repeats at most the step that it was in.
    assert repeated <= stalls, f"{repeated} effects were done again after {stalls} stalls"
