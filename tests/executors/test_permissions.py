"""Tasks with permissions run in children that cannot do anything else."""

from __future__ import annotations

import os
from typing import Any

import pytest

from jobq import JobFailed, Queue, Worker
from tests.executors.apps import work


@pytest.mark.parametrize("task", [work.read, work.read_async], ids=["plain", "async"])
async def test_a_violation_is_a_clear_failure_and_the_child_goes_on(
    queue: Queue, task: Any
) -> None:
    async with Worker(work.confined, pool=2):
        for _ in range(2):
            assert await task.call("/etc/hostname") == os.path.getsize("/etc/hostname")
            with pytest.raises(JobFailed, match="/etc/passwd is not readable for task read") as it:
                await task.call("/etc/passwd")
            assert it.value.failure.type == "jobq.PermissionDenied"


async def test_a_full_pool_makes_room_for_other_permissions(queue: Queue) -> None:
    async with Worker(queue, work.confined, pool=1):
        first = await work.pid.call()
        assert await work.read.call("/etc/hostname")
        assert await work.pid.call() != first


async def test_processor_time_counts_per_job(queue: Queue) -> None:
    async with Worker(work.confined, pool=1):
        pids = {await work.burn.call(False) for _ in range(3)}
        assert len(pids) == 3
        with pytest.raises(JobFailed, match="1 s of processor time") as caught:
            await work.burn.call(True)
    assert caught.value.failure.reason == "crashed"
