"""A child process runs jobs of a task's old names, with their arguments upgraded."""

from __future__ import annotations

from pathlib import Path

from jobq import Worker
from tests.executors.apps import renamed


async def test_a_child_process_upgrades_the_arguments_of_an_old_job(tmp_path: Path) -> None:
    queue = renamed.queue
    queue._context.connection.move(f"sqlite:///{tmp_path}/jobs.db")
    async with queue, Worker(queue, pool=1):
        old = await queue.task_by_name("charge").enqueue(2.5)
        assert await old.result(timeout=30) == 250
        assert await renamed.charge.call(9) == 9
