"""Children that are killed under load, and handlers that never let go of the processor."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from jobq import State, Worker
from tests.executors.apps import load
from tests.waiting import until

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]


async def test_only_killed_jobs_are_retried_when_a_child_is_killed_every_100_jobs(
    tmp_path: Path,
) -> None:
    total, every = 10_000, 100
    queue = load.queue
    queue._context.connection.move(f"sqlite:///{tmp_path}/jobs.db")
    async with queue:
        jobs = await load.count.enqueue_many([(n,) for n in range(total)])
        async with Worker(queue, pool=2) as worker:
            pool = worker._executors["process"]._pool  # type: ignore[union-attr]
            killed: set[str] = set()
            next_kill = every

            async def ended() -> int:
                counts = await queue.counts()
                return counts[State.COMPLETED] + counts[State.FAILED]

            while (done := await ended()) < total:
                if done >= next_kill:
                    busy = [child for child in pool._children if child.run is not None]
                    if busy:
                        child = random.choice(busy)
                        killed.add(child.run.lease.id)
                        os.kill(child.process.pid, signal.SIGKILL)
                        next_kill += every
                await asyncio.sleep(0)
        infos = [await job.info() for job in jobs]
    assert Counter(info.state for info in infos) == {State.COMPLETED: total}
    assert [info.result for info in infos] == list(range(total))
    retried = {info.id for info in infos if info.failures}
    assert retried <= killed
    assert len(killed) > total // every // 2
    assert not any(info.stalls for info in infos)


@pytest.mark.parametrize("how", ["thread", "process", "command"])
async def test_a_handler_that_never_lets_go_keeps_its_lease_of_2_seconds(
    tmp_path: Path, how: str
) -> None:
    queue = load.busy_queue
    queue._context.connection.move(f"sqlite:///{tmp_path}/jobs.db")
    task: Any = {"thread": load.in_thread, "process": load.in_process, "command": load.in_program}
    async with queue:
        job = await task[how].enqueue(seconds=60)
        async with Worker(queue, pool=1, lease=2):
            info = await job.wait(timeout=120)
    assert (info.state, info.attempt, info.stalls) == (State.COMPLETED, 1, 0)


async def test_children_die_with_a_worker_that_is_killed(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tests.executors.apps.load",
            f"sqlite:///{tmp_path}/jobs.db",
            str(tmp_path),
        ]
    )
    try:
        pids = [await _pid(tmp_path / f"{n}.pid") for n in range(2)]
    finally:
        process.kill()
        process.wait()
    for pid in pids:
        await until(partial(_ended, pid), "the end of a child")


async def _pid(path: Path) -> int:
    return int(await until(lambda: path.exists() and path.read_text(), "a busy child"))


def _ended(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()
