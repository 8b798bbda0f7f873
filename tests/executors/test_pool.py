"""The pool of child processes: how many there are, and which one gets a job."""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from jobq import JobFailed, Queue, Worker
from jobq.executors.handlers import address_of
from jobq.executors.pool import pool as pool_module
from jobq.executors.pool.child import Child, Group
from jobq.executors.pool.pool import Pool
from jobq.executors.settings import ExecutorSettings
from tests.executors.apps import work
from tests.waiting import blocks, until


def pool_of(worker: Worker) -> Pool:
    executor: Any = worker._executors["process"]
    pool: Pool = executor._pool
    return pool


async def test_a_job_whose_child_dies_before_it_is_sent_runs_in_another_one(
    queue: Queue, folder: Path
) -> None:
    begun, end = folder / "begun", folder / "end"
    async with Worker(queue, pool=1) as worker:
        await work.returns_and_dies.enqueue(str(begun), str(end))
        await until(begun.exists, "the handler")
        job = await work.pid.enqueue()
        await until(lambda: pool_of(worker)._waiting, "the job to wait for the child")
        end.touch()
        blocks(0.5)  # then the loop learns in one step that the child is free, and that it died
        await job.result(timeout=20)
        info = await job.info()
    assert (info.attempt, info.failures) == (1, 0)


async def test_more_groups_than_children_do_not_make_the_pool_larger(queue: Queue) -> None:
    pool = Pool(ExecutorSettings(pool=2))
    handler = queue.tasks["add"]
    for tenant in "abcde":
        pool.expect(Group(tenant, None), address_of(handler, "apart"))
    try:
        await pool.warm_up()
        await until(lambda: not pool._ending, "the children that were tried out to end")
        assert len(pool._children) == 2
    finally:
        await pool.aclose()


async def test_a_system_that_refuses_a_process_fails_one_job_and_no_later_one(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = True

    def start(*args: Any, **options: Any) -> Child:
        if refused:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return Child(*args, **options)

    async with Worker(queue, pool=1) as worker:
        pid = await work.pid.call()
        monkeypatch.setattr(pool_module, "Child", start)
        os.kill(pid, signal.SIGKILL)
        await until(lambda: not pool_of(worker)._children, "the end of the child")
        with pytest.raises(JobFailed, match="Too many open files"):
            await work.pid.options(retry=0, call_timeout=20).call()
        refused = False
        for _ in range(2):
            assert await work.pid.options(call_timeout=20).call() != pid
