"""Middleware and lifespan with child processes and programs.

Middleware runs in the worker, around the run of the other process. A lifespan is also entered in
each child process.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from jobq import ConfigError, CurrentJob, JobFailed, Queue, State, Worker
from tests.executors.apps import binding, declared, hooked


@pytest.fixture
async def queue(url: str) -> AsyncIterator[Queue]:
    hooked.queue._context.connection.move(url)
    hooked.trace.clear()
    async with hooked.queue:
        yield hooked.queue
    await hooked.queue._context.connection.move_back()


def worker(queue: Queue, **options: Any) -> Worker:
    return Worker(queue, **{"pool": 1, "lifespan": hooked.lifespan, **options})


async def test_middleware_in_the_worker_sees_results_and_may_change_them(queue: Queue) -> None:
    async with worker(queue):
        assert await hooked.add.call(1, 2) == 3
        changed: Any = await hooked.add.options(meta={"change": "1"}).call(3, 4)
        assert changed == "changed 7"
        assert await hooked.program.call() == 42
    gets = [line for line in hooked.trace if line.startswith("gets")]
    assert gets == ["gets 3", "gets 7", "gets 42"]


async def test_middleware_sees_a_description_of_the_error_and_retries_stay(queue: Queue) -> None:
    async with worker(queue):
        info = await (await hooked.fails.enqueue()).wait(timeout=20)
    assert (info.state, info.failures) == (State.FAILED, 2)
    assert info.failure is not None
    assert (info.failure.type, info.failure.message) == ("LookupError", "gone")
    assert 'raise LookupError("gone")' in (info.failure.traceback or "")
    assert hooked.trace == 2 * ["begins fails", "sees FailedApart: LookupError: gone"]


async def test_reject_snooze_crash_and_exit_codes_pass_through(queue: Queue) -> None:
    async with worker(queue):
        rejected = await (await hooked.rejects.enqueue()).wait(timeout=20)
        assert await hooked.snoozes.call() == "kept"
        died = await (await hooked.dies.enqueue()).wait(timeout=20)
        exited = await (await hooked.failing_program.enqueue()).wait(timeout=20)
    assert rejected.failure is not None
    assert died.failure is not None
    assert exited.failure is not None
    reasons = [job.failure.reason for job in (rejected, died, exited) if job.failure is not None]
    assert reasons == ["rejected", "crashed", "error"]
    sees = [line.split(":")[0] for line in hooked.trace if line.startswith("sees")]
    assert sees == ["sees FailedApart", "sees Snooze", "sees FailedApart", "sees FailedApart"]


async def test_middleware_may_swallow_an_error_but_not_a_wait(queue: Queue) -> None:
    swallow = {"swallow": "1"}
    async with worker(queue):
        failed = await queue.task_by_name("fails", meta=swallow).call()
        assert failed == "swallowed"
        job = await hooked.waits.options(meta=swallow).enqueue()
        await job.signal("go", 5)
        assert await job.result(timeout=20) == 5


@pytest.mark.parametrize("by", ["cancel", "timeout"])
async def test_an_interruption_is_a_cancellation_in_the_middleware(queue: Queue, by: str) -> None:
    begun = asyncio.Event()

    async def outer(job: CurrentJob, call_next: Any) -> object:
        begun.set()
        return await call_next(job)

    async with worker(queue, middleware=[outer]):
        task = hooked.hangs.options(timeout=0.2) if by == "timeout" else hooked.hangs
        job = await task.enqueue()
        await asyncio.wait_for(begun.wait(), 20)
        if by == "cancel":
            await job.cancel()
        info = await job.wait(timeout=20)
    if by == "cancel":
        assert info.state is State.CANCELLED
    else:
        assert info.failure is not None
        assert info.failure.reason == "timeout"
    assert hooked.trace[-1].startswith("sees CancelledError")


@pytest.mark.parametrize("before", [True, False])
async def test_a_cancel_reaches_middleware_that_waits_before_or_after_the_process(
    queue: Queue, before: bool
) -> None:
    waiting = asyncio.Event()

    async def slow(job: CurrentJob, call_next: Any) -> object:
        if not before:
            await call_next(job)
        waiting.set()
        await asyncio.Event().wait()
        return await call_next(job)

    async with worker(queue, middleware=[slow]):
        job = await hooked.add.enqueue(1, 2)
        await asyncio.wait_for(waiting.wait(), 20)
        await job.cancel()
        assert (await job.wait(timeout=20)).state is State.CANCELLED


async def test_a_child_job_passes_the_enqueue_middleware_in_its_parents_process(
    queue: Queue,
) -> None:
    async with worker(queue):
        pid, enqueued_by = await hooked.parent.call()
    assert enqueued_by == str(pid)
    assert pid != os.getpid()


async def test_each_child_has_its_own_lifespan_and_leaves_it(
    queue: Queue, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOKED_FOLDER", str(folder))
    async with worker(queue):
        first, second = await hooked.state.call(), await hooked.state.call()
    lifespan_pid, pid, ticks, _ = first
    assert lifespan_pid == pid != os.getpid()
    assert ticks > 0
    assert second[2] > 0  # the end of a job does not end the lifespan's own task
    assert first[3] == second[3] == 1  # but it does end the task that the job left behind
    assert {path.name for path in folder.iterdir() if path.name.startswith("left")} == {
        f"left-{pid}",
        f"left-{os.getpid()}",
    }


@pytest.mark.parametrize("task", [hooked.depends, hooked.depends_async], ids=["plain", "async"])
async def test_dependencies_are_resolved_in_the_child(queue: Queue, task: Any) -> None:
    async with worker(queue):
        first, pid, provider_pid, lifespan_pid = await task.call(1)
    assert (first, provider_pid, lifespan_pid) == (1, pid, pid)
    assert pid != os.getpid()


async def test_a_task_with_permissions_gets_no_lifespan(queue: Queue) -> None:
    async with worker(queue):
        with pytest.raises(JobFailed, match="whose task has permissions has no lifespan"):
            await hooked.confined.call()


async def test_a_lifespan_that_fails_in_a_child_stops_the_start(queue: Queue) -> None:
    with pytest.raises(ConfigError, match="failed in a child process: OSError: no database here"):
        async with worker(queue, lifespan=hooked.broken_in_children):
            pass


async def test_a_lifespan_that_children_cannot_import_is_refused(queue: Queue) -> None:
    @asynccontextmanager
    async def local() -> AsyncIterator[None]:
        yield

    with pytest.raises(ConfigError, match="define it at the top level of a module"):
        async with worker(queue, lifespan=local):
            pass


async def test_a_child_finds_a_task_that_another_module_binds_to_its_queue() -> None:
    async with binding.queue, Worker(binding.queue, pool=1):
        assert await declared.pid.call() != os.getpid()
