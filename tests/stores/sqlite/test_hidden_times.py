"""A tick repairs jobs whose time is no number: no statement that goes by the clock meets them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import apsw
import pytest

from jobq import Queue, State


@pytest.mark.parametrize("value", ["'soon'", "x'00'"])
async def test_a_delayed_job_without_a_readable_time_becomes_due(
    tmp_path: Path, value: str
) -> None:
    path = tmp_path / "jobs.db"
    queue = Queue("q", f"sqlite:///{path}")
    async with queue:
        job = await queue.task_by_name("work").options(delay=3600).enqueue()
    connection = apsw.Connection(str(path))
    connection.execute(f"UPDATE jobs SET at_ms = {value}")
    connection.close()
    async with queue:
        store = await queue._context.store()
        async with asyncio.timeout(20):  # one tick repairs it, another one finds it due
            while await job.state() is State.DELAYED:
                await store.tick()
        assert await job.state() is State.WAITING
