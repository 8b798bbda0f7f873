"""Workers in separate processes, and what is left when one is killed."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections import Counter
from pathlib import Path

import pytest

from jobq.core.records.states import State
from jobq.stores import open_store

from .kit import Bench, eventually

_APP = """
import asyncio, sys
from jobq import Queue, Worker

queue = Queue("work", sys.argv[1], tenant=sys.argv[2])

@queue.task
async def work(n: int) -> int:
    await asyncio.sleep(0.001)
    return n

async def main():
    async with queue:
        print("ready", flush=True)
        await Worker(queue, concurrency=20, lease=1).run()

asyncio.run(main())
"""


class Process:
    """A worker in a process."""

    def __init__(self, bench: Bench, app: Path) -> None:
        self._command = (sys.executable, str(app), bench.url, bench.qname.tenant)

    async def __aenter__(self) -> asyncio.subprocess.Process:
        self._process = await asyncio.create_subprocess_exec(
            *self._command, stdout=asyncio.subprocess.PIPE
        )
        assert self._process.stdout is not None
        assert await asyncio.wait_for(self._process.stdout.readline(), 20) == b"ready\n"
        return self._process

    async def __aexit__(self, *_: object) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()


@pytest.fixture
def app(tmp_path: Path) -> Path:
    path = tmp_path / "app.py"
    path.write_text(_APP)
    return path


async def test_what_a_killed_worker_held_is_run_by_another_and_nothing_ends_twice(
    tmp_path: Path, app: Path
) -> None:
    async with open_store(f"sqlite:///{tmp_path}/jobs.db") as store:
        bench = Bench(store)
        ids = await bench.add_many("work", 2000)
        for killed_after in (200, 700):
            async with Process(bench, app) as process:

                async def far_enough(enough: int = killed_after) -> bool:
                    return await bench.count(State.COMPLETED) >= enough

                await eventually(far_enough)
                process.kill()
        async with Process(bench, app) as process:
            await bench.all_in(State.COMPLETED, 2000)
            process.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(process.wait(), 20) == 0
        by_job: dict[str, Counter[str]] = {id: Counter() for id in ids}
        async for event in events(bench):
            by_job[event.job][str(event.kind)] += 1
    assert all(kinds["completed"] == 1 for kinds in by_job.values())
    assert all(kinds["started"] == 1 + kinds["stalled"] for kinds in by_job.values())
    assert sum(kinds["stalled"] for kinds in by_job.values()) <= 40, "at most what two workers held"


async def events(bench: Bench):  # type: ignore[no-untyped-def]
    """Everything in the queue's log."""
    store, position = await bench.store(), "0"
    while (page := await store.read_events(bench.qname, after=position)).events:
        for event in page.events:
            yield event
        position = page.position


async def test_workers_in_two_processes_share_the_jobs_of_a_file(tmp_path: Path, app: Path) -> None:
    async with open_store(f"sqlite:///{tmp_path}/jobs.db") as store:
        bench = Bench(store)
        async with Process(bench, app), Process(bench, app):
            await eventually(lambda: store.workers(bench.qname))
            await bench.add_many("work", 1000)
            await bench.all_in(State.COMPLETED, 1000)
        kinds: Counter[str] = Counter()
        async for event in events(bench):
            kinds[str(event.kind)] += 1
    assert (kinds["started"], kinds["completed"]) == (1000, 1000)
