"""Handlers in child processes: results, errors, crashes, timeouts and cancels."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from jobq import ConfigError, JobCancelled, JobFailed, Queue, State, Worker
from tests.executors.apps import work
from tests.waiting import nothing_happens, until


def worker(queue: Queue, **options: Any) -> Worker:
    return Worker(queue, **{"pool": 1, **options})


async def test_a_plain_and_an_async_function_return_their_results(queue: Queue) -> None:
    async with worker(queue):
        assert await work.add.call(1, 2) == 3
        assert await work.add_async.call(3, 4) == 7
        assert await work.pid.call() != os.getpid()


async def test_one_child_runs_one_job_after_the_other(queue: Queue) -> None:
    async with worker(queue):
        assert len({await work.pid.call() for _ in range(5)}) == 1


async def test_an_error_has_its_type_message_and_traceback(queue: Queue) -> None:
    async with worker(queue):
        with pytest.raises(JobFailed) as caught:
            await work.fail.call("bad luck")
    failure = caught.value.failure
    assert (failure.reason, failure.message) == ("error", "bad luck")
    assert failure.type.endswith("work.Unlucky")
    assert failure.traceback is not None
    assert "raise Unlucky(words)" in failure.traceback
    assert "executors/pool" not in failure.traceback


async def test_a_policy_sees_the_real_error(queue: Queue) -> None:
    async with worker(queue):
        job = await work.give_up.enqueue()
        info = await job.wait(timeout=20)
    assert (info.state, info.failures) == (State.FAILED, 1)


async def test_a_job_can_reject_itself_and_snooze_with_a_saved_value(queue: Queue) -> None:
    async with worker(queue):
        rejected = await (await work.reject.enqueue()).wait(timeout=20)
        assert rejected.failure is not None
        assert (rejected.failure.reason, rejected.failures) == ("rejected", 1)
        assert await work.snooze.call() == "step 1"


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("exit", "ended with exit code 7"),
        ("segfault", "killed by SIGSEGV"),
        ("SIGKILL", "killed by SIGKILL (out of memory?)"),
    ],
)
async def test_a_child_that_dies_fails_its_own_job_as_crashed(
    queue: Queue, how: str, words: str
) -> None:
    async with worker(queue, pool=2):
        dying = await work.die.enqueue(how)
        healthy = [await work.add.enqueue(n, n) for n in range(20)]
        info = await dying.wait(timeout=20)
        assert [await job.result(timeout=20) for job in healthy] == [2 * n for n in range(20)]
    assert info.failure is not None
    assert (info.state, info.failure.reason) == (State.FAILED, "crashed")
    assert words in info.failure.message
    assert info.stalls == 0


async def test_a_job_that_a_dead_child_did_not_begin_runs_in_another_one(queue: Queue) -> None:
    async with worker(queue) as running:
        first = await work.pid.call()
        # Frozen, the child reads nothing. Then it is killed, with the next job in its socket.
        os.kill(first, signal.SIGSTOP)
        job = await work.pid.enqueue()

        def sent() -> bool:
            executor: Any = running._executors["process"]
            return any(child.run is not None for child in executor._pool._children)

        await until(sent, "the job to be sent")
        os.kill(first, signal.SIGKILL)
        assert await job.result(timeout=20) != first
        info = await job.info()
    assert (info.attempt, info.failures) == (1, 0)


async def test_a_crash_is_retried_like_any_failure(queue: Queue) -> None:
    async with worker(queue):
        job = await work.die_once.enqueue()
        assert await job.result(timeout=20) == 2
        info = await job.info()
    assert (info.failures, info.stalls, info.attempt) == (1, 0, 2)


@pytest.mark.parametrize("task", [work.polite, work.polite_async], ids=["plain", "async"])
async def test_a_run_past_its_timeout_is_asked_to_stop(
    queue: Queue, folder: Path, task: Any
) -> None:
    async with worker(queue):
        before = await work.pid.call()
        info = await (await task.enqueue(str(folder / "end"))).wait(timeout=20)
        assert await work.pid.call() == before
    assert info.failure is not None
    assert (info.failure.reason, info.failure.message) == (
        "timeout",
        "the run did not end within 0.3 s",
    )
    assert (folder / "end").read_text() == "cleaned, cancelled=True"


async def test_a_run_that_goes_on_is_killed_and_the_slot_is_free(queue: Queue) -> None:
    async with worker(queue):
        before = await work.pid.call()
        info = await (await work.stubborn.enqueue()).wait(timeout=20)
        assert await work.pid.options(call_timeout=20).call() != before
    assert info.failure is not None
    assert info.failure.reason == "timeout"
    assert info.failure.message.endswith("went on when it was asked to stop, and was killed")


async def test_a_cancelled_run_is_asked_to_stop(queue: Queue, folder: Path) -> None:
    async with worker(queue):
        job = await work.waits.enqueue(str(folder / "begun"))
        await until((folder / "begun").exists, "the handler")
        before = await job.info()
        assert await job.cancel()
        with pytest.raises(JobCancelled):
            await job.result(timeout=4)
        assert before.state is State.ACTIVE


async def test_a_signal_that_the_worker_did_not_send_does_not_interrupt_a_job(
    queue: Queue, folder: Path
) -> None:
    async with worker(queue):
        pid = await work.pid.call()
        job = await work.until_there_is.enqueue(str(folder / "begun"), str(folder / "end"))
        await until((folder / "begun").exists, "the handler")
        os.kill(pid, signal.SIGTERM)
        (folder / "end").touch()
        assert await job.result(timeout=20) == pid


async def test_a_cancelled_run_that_goes_on_is_killed(queue: Queue, folder: Path) -> None:
    async with worker(queue):
        job = await work.busy.enqueue(str(folder / "begun"))
        await until((folder / "begun").exists, "the handler")
        await job.cancel()
        assert (await job.wait(timeout=20)).state is State.CANCELLED
        assert await work.add.call(1, 1) == 2


async def test_a_stopping_worker_releases_a_run_that_goes_on(queue: Queue, folder: Path) -> None:
    async with worker(queue) as running:
        job = await work.busy.enqueue(str(folder / "begun"))
        await until((folder / "begun").exists, "the handler")
        stopped = await running.stop(drain=0)
    assert [ref.id for ref in stopped.released] == [job.id]
    assert (await job.info()).state is State.WAITING


async def test_processes_that_a_handler_started_are_killed_with_it(
    queue: Queue, folder: Path
) -> None:
    async with worker(queue, grace=0.2):
        job = await work.with_grandchild.enqueue(str(folder / "pid"))
        pid = int(
            await until(lambda: (folder / "pid").exists() and (folder / "pid").read_text(), "it")
        )
        await job.cancel()
        await job.wait(timeout=20)
        await until(lambda: _gone(pid), "the end of the grandchild")


def _gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except FileNotFoundError:
        return True
    return state == "Z"


async def test_an_idle_child_sleeps(queue: Queue) -> None:
    async with worker(queue):
        status = Path(f"/proc/{await work.pid.call()}/status")
        before = _switches(status)
        await nothing_happens(1.0, "a child that polls would be scheduled")
        assert _switches(status) - before <= 1  # it may have been about to fall asleep


def _switches(status: Path) -> int:
    """How often a process went to sleep by itself."""
    (line,) = (one for one in status.read_text().splitlines() if one.startswith("voluntary"))
    return int(line.split()[1])


async def test_a_child_is_replaced_after_its_jobs(queue: Queue) -> None:
    async with worker(queue, pool_max_jobs=2):
        pids = [await work.pid.call() for _ in range(6)]
    assert len(set(pids)) == 3
    assert pids[0] == pids[1]


async def test_a_child_that_uses_too_much_memory_is_replaced(queue: Queue) -> None:
    async with worker(queue, pool_max_memory="1M"):
        assert len({await work.pid.call() for _ in range(3)}) == 3


async def test_a_task_of_the_main_module_is_refused_before_the_worker_starts(url: str) -> None:
    queue = Queue("main", url)

    def task() -> None: ...

    task.__module__ = "__main__"
    queue.task(executor="process")(task)
    with pytest.raises(ConfigError, match="main module"):
        await Worker(queue).__aenter__()


async def test_a_task_that_a_child_does_not_find_is_refused_before_the_worker_starts(
    url: str,
) -> None:
    queue = Queue("local", url)
    work.define_later(queue)
    with pytest.raises(ConfigError, match="does not register the task"):
        await Worker(queue).__aenter__()


async def test_a_worker_can_be_stopped_while_its_children_start(queue: Queue) -> None:
    later = Queue("later", "memory://stopped-while-children-start")

    @later.task
    async def inline() -> None: ...

    async with later:
        starting = Worker(queue, later, pool=1)  # the executor of `later` is opened after the pool
        running = asyncio.create_task(starting.run())
        await until(lambda: "process" in starting._executors, "the pool to start")
        await starting.stop(drain=0)
        await asyncio.wait_for(running, 30)
