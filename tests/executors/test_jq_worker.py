"""jq-worker with tasks in child processes, as a process of its own (on uvloop if it is there)."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from jobq import JobFailed, Queue, testing
from jobq.api.command import ANY_COMMAND
from tests.executors.apps import work
from tests.executors.test_process import _gone

ROOT = Path(__file__).parents[2]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/jobs.db"


async def test_jq_worker_runs_children_and_allowed_programs_and_ends_them(
    queue: Queue, url: str
) -> None:
    app = "tests.executors.apps.work:queue"
    options = ["--url", url, "--pool", "1", "--grace", "1s", "--allow-command", "cat"]
    code = "from jobq.cli.worker import main; main()"
    process = subprocess.Popen([sys.executable, "-c", code, app, *options], cwd=ROOT)
    try:
        child = await work.pid.options(call_timeout=60).call()
        assert child != process.pid
        bring = queue.task_by_name(ANY_COMMAND, retry=0)
        assert await bring.call(argv=["cat"], stdin=[1]) == [1]
        with pytest.raises(JobFailed, match="--allow-command ls"):
            await bring.call(argv=["ls"])
        # The child uses the worker's store, although the app names another one.
        id = await work.enqueues_in_its_queue.call()
        assert await queue.job(id).result(timeout=20) == 10
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 30) == 0
        assert _gone(child)
    finally:
        process.kill()
        process.wait()


async def test_drain_of_the_testing_module_runs_children() -> None:
    async with testing.use(work.queue) as jobs:
        job = await work.add.enqueue(2, 3)
        await jobs.drain()
        assert await job.result(timeout=1) == 5
