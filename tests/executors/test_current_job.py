"""`current_job()` in a child process: every member works there, through the worker."""

from __future__ import annotations

import os
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from jobq import CurrentJob, JobFailed, JobNotFound, Queue, State, SyncCurrentJob, Worker
from jobq.executors.pool.output import read_until_now
from tests.executors.apps import work
from tests.waiting import until

# Each public member, and the test of this file or of test_process.py that uses it in a child.
USED_BY = {
    "id": "test_a_plain_function_finds_its_job",
    "name": "test_a_plain_function_finds_its_job",
    "queue": "test_a_plain_function_finds_its_job",
    "tenant": "test_a_plain_function_finds_its_job",
    "attempt": "test_a_plain_function_finds_its_job",
    "created_at": "test_a_plain_function_finds_its_job",
    "failures": "test_a_plain_function_finds_its_job",
    "max_retries": "test_a_plain_function_finds_its_job",
    "key": "test_a_plain_function_finds_its_job",
    "meta": "test_a_plain_function_finds_its_job",
    "progress": "test_a_plain_function_finds_its_job",
    "log": "test_a_plain_function_finds_its_job",
    "sync": "test_a_plain_function_finds_its_job",
    "saved": "test_a_job_can_reject_itself_and_snooze_with_a_saved_value",
    "cancelled": "test_a_run_past_its_timeout_is_asked_to_stop",
    "add": "test_a_job_adds_children_and_waits_for_them",
    "wait_for_children": "test_a_job_adds_children_and_waits_for_them",
    "wait_for_signal": "test_a_job_waits_for_a_signal",
    # Of test_hooks.py. `batch` is for middleware, which runs in the worker.
    "lifespan": "test_each_child_has_its_own_lifespan_and_leaves_it",
    "batch": "test_middleware_in_the_worker_sees_results_and_may_change_them",
    "step": "test_steps_are_recorded_through_the_worker",
    "save": "test_steps_are_recorded_through_the_worker",
    "complete_in": "test_completing_in_a_transaction_is_refused",
}


@pytest.mark.parametrize("cls", [CurrentJob, SyncCurrentJob])
def test_every_member_has_a_test_that_uses_it_in_a_child(cls: type) -> None:
    members = {name for name in dir(cls) if not name.startswith("_")}
    assert members == set(USED_BY)


async def test_a_plain_function_finds_its_job(queue: Queue) -> None:
    async with Worker(queue, pool=1):
        job = await work.uses_its_job.options(meta={"trace": "7"}, retry=9).enqueue()
        found = await job.result(timeout=20)
        info = await job.info()
        lines = await job.logs()
    assert found == {
        "id": job.id,
        "name": "uses_its_job",
        "queue": "apart",
        "tenant": "default",
        "attempt": 1,
        "failures": 0,
        "max_retries": 9,
        "key": None,
        "meta": {"trace": "7"},
        "cancelled": False,
        "created": info.created_at.isoformat(),
    }
    assert (info.progress, lines) == ({"half": True}, ["a line"])


async def test_an_async_function_and_its_threads_use_their_job(queue: Queue) -> None:
    async with Worker(queue, pool=1):
        job = await work.uses_its_job_async.enqueue()
        assert await job.result(timeout=20) == job.id
        info = await job.info()
        assert info.progress == 1
        assert sorted(await job.logs()) == ["from a thread", "one", "two"]


@pytest.mark.parametrize("task", [work.parent, work.parent_async], ids=["plain", "async"])
async def test_a_job_adds_children_and_waits_for_them(queue: Queue, task: Any) -> None:
    async with Worker(queue, pool=1):
        job = await task.enqueue(3)
        assert await job.result(timeout=20) == [0, 10, 20]
        counts = await queue.counts()
    assert counts[State.COMPLETED] == 4


async def test_a_child_of_another_store_is_refused(queue: Queue) -> None:
    async with Worker(queue, pool=1):
        with pytest.raises(JobFailed, match="another store or tenant"):
            await work.parent_elsewhere.call()


@pytest.mark.parametrize(
    "task", [work.recorded_steps, work.recorded_steps_async], ids=["plain", "async"]
)
async def test_steps_are_recorded_through_the_worker(queue: Queue, folder: Path, task: Any) -> None:
    async with Worker(queue, pool=1):
        job = await task.enqueue(str(folder))
        assert await job.result(timeout=20) == [0, 0, "saved by run 1"]
        info = await job.info()
    assert sorted(path.name for path in folder.glob("[ab]-*")) == ["a-0", "b-0"]
    assert sorted((step.name, step.attempt) for step in info.steps) == [("a", 1), ("b", 1)]
    assert info.saved == "saved by run 2"


async def test_children_of_a_step_are_waited_for_by_the_run_that_skips_it(
    queue: Queue, folder: Path
) -> None:
    async with Worker(queue, pool=1):
        job = await work.step_then_waits.options(id="p").enqueue(str(folder))
        assert await job.result(timeout=20) == ["p:add/0", {"p:add/0": 10, "p:0": 20}]
    assert (folder / "run-1").exists()


async def test_a_snooze_keeps_what_its_run_has_saved(queue: Queue) -> None:
    async with Worker(queue, pool=1):
        assert await work.saves_and_snoozes.options(call_timeout=20).call() == "cursor"


async def test_a_handler_does_not_go_on_after_a_step_that_was_not_recorded(
    queue: Queue, folder: Path
) -> None:
    async with Worker(queue, pool=1):
        job = await work.step_under_a_lost_lease.enqueue(str(folder))
        await until((folder / "begun").exists, "the handler")
        await queue.obliterate(force=True)
        (folder / "go").touch()
        await until((folder / "stopped").exists, "the end of the handler")
        with pytest.raises(JobNotFound):
            await job.info()
    assert (folder / "charge-0").exists()
    assert not (folder / "went on").exists()


async def test_a_result_that_is_too_large_fails_the_job_without_a_retry(
    queue: Queue, folder: Path
) -> None:
    async with Worker(queue, pool=1):
        with pytest.raises(JobFailed, match="step 'charge' has run, and its result cannot be"):
            await work.step_too_large.options(call_timeout=20, retry=3).call(str(folder))
    assert (folder / "charge-0").exists()
    assert not (folder / "charge-1").exists()


async def test_completing_in_a_transaction_is_refused(queue: Queue) -> None:
    async with Worker(queue, pool=1):
        with pytest.raises(JobFailed, match="runs in a process of its own"):
            await work.completes_itself.call()


async def test_a_job_waits_for_a_signal(queue: Queue) -> None:
    async with Worker(queue, pool=1):
        job = await work.asks.enqueue()

        async def blocked() -> bool:
            return await job.state() is State.BLOCKED

        await until(blocked, "the wait")
        await job.signal("approved", {"by": "ada"})
        assert await job.result(timeout=20) == {"by": "ada"}


async def test_what_a_job_prints_becomes_its_log(queue: Queue) -> None:
    async with Worker(queue, pool=1):
        job = await work.prints.enqueue()
        await job.result(timeout=20)
        lines = await job.logs()
    assert lines == [
        "from print",
        "from stderr",
        "from a grandchild",
        "from C",
        "without an end",
    ]


async def test_each_line_belongs_to_the_job_that_printed_it(queue: Queue) -> None:
    jobs = await work.prints_its_number.enqueue_many([(n,) for n in range(200)])
    async with Worker(queue, pool=1):
        for job in jobs:
            await job.result(timeout=20)
    assert [await job.logs() for job in jobs] == [[str(n)] for n in range(200)]


async def test_printed_lines_and_logged_lines_keep_their_order(queue: Queue) -> None:
    async with Worker(queue, pool=1):
        job = await work.prints_then_logs.enqueue()
        await job.result(timeout=20)
        assert await job.logs() == ["first", "second", "third"]


async def test_a_job_that_prints_too_much_stores_the_first_lines_and_says_so(
    queue: Queue,
) -> None:
    async with Worker(queue, pool=1):
        job = await work.prints_much.enqueue(5000)
        await job.result(timeout=20)
        lines = await job.logs()
    assert len(lines) == 1000
    assert (lines[0], lines[998]) == ("line 0", "line 998")
    assert lines[999] == "… and 4,001 lines more, which are not stored"


async def test_a_job_that_prints_without_a_pause_does_not_block_its_worker(
    queue: Queue, folder: Path
) -> None:
    begun, end = folder / "begun", folder / "end"
    async with Worker(queue, pool=1):
        started = monotonic()
        job = await work.prints_without_a_pause.enqueue(str(begun), str(end))
        await until(begun.exists, "the handler")
        for n in range(20):
            assert await work.child.options(call_timeout=20).call(n) == 10 * n
        took = monotonic() - started
        end.touch()
        await job.result(timeout=20)
        lines = await job.logs()
    assert took < 8
    assert lines[:999] == ["y"] * 999
    assert lines[999].endswith("lines more, which are not stored")


async def test_a_thread_that_outlives_its_job_does_not_disturb_the_next_ones(queue: Queue) -> None:
    async with Worker(queue, pool=1):
        pid = await work.pid.call()
        first = await work.leaves_a_thread_that_logs.enqueue()
        await first.result(timeout=20)
        for n in range(20):
            job = await work.logs.enqueue(str(n))
            assert await job.result(timeout=20) == pid
            assert await job.logs() == [str(n)]
            assert await work.add_async.options(call_timeout=20).call(n, n) == 2 * n
        assert set(await first.logs()) == {"from a thread"}


async def test_threads_of_an_async_handler_may_have_event_loops(queue: Queue) -> None:
    async with Worker(queue, pool=1):
        job = await work.logs_from_another_loop.enqueue(50)
        await job.result(timeout=20)
        assert len(await job.logs()) == 100


def test_what_is_in_a_pipe_now_is_read_while_its_writer_goes_on() -> None:
    reading, writing = os.pipe()
    os.write(writing, bytes(100))
    reads = 0

    def read() -> int:
        nonlocal reads
        reads += 1
        assert reads <= 10, "it waits for the writer to pause"
        os.write(writing, bytes(10))
        return len(os.read(reading, 10))

    try:
        read_until_now(reading, read)
    finally:
        os.close(reading)
        os.close(writing)
    assert reads == 10


async def test_a_crashed_job_keeps_what_it_printed(queue: Queue) -> None:
    async with Worker(queue, pool=1):
        job = await work.prints_and_dies.enqueue()
        assert (await job.wait(timeout=20)).state is State.FAILED
        assert await job.logs() == ["the last words"]


async def test_a_handler_enqueues_by_its_own_connection_unless_the_store_is_memory(
    queue: Queue, url: str
) -> None:
    async with Worker(queue, pool=1):
        job = await work.enqueues.enqueue(url)
        if url.startswith("memory:"):
            with pytest.raises(JobFailed, match="memory:// is the memory of the worker"):
                await job.result(timeout=20)
        else:
            id = await job.result(timeout=20)
            async with Queue("elsewhere", url) as elsewhere:
                assert (await elsewhere.job(id).info()).name == "later"
