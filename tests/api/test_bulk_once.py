"""A bulk operation changes each job once, also if its process is killed and another one continues.

Workers run meanwhile and the jobs fail again at once, so each is soon back in the selection."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import Any

import pytest

from jobq import BulkProgress, Queue, Worker
from jobq.operations.bulk import BulkChange
from jobq.operations.listing import PAGE

JOBS = 60
CHILD = """
import asyncio, sys
from jobq import Queue

async def main(name: str, url: str) -> None:
    async with Queue(name, url) as queue:
        def tell(progress):
            print(progress.changed, progress.cursor, flush=True)
        await queue.select("completed", "failed").rerun(pace=200, on_progress=tell)

asyncio.run(main(*sys.argv[1:]))
"""


async def ended(queue: Queue, jobs: int = JOBS) -> None:
    """Jobs that have completed or failed. From their second run on, all of them fail."""
    runs: dict[int, int] = {}

    @queue.task(retry=0)
    async def charge(n: int) -> None:
        runs[n] = runs.get(n, 0) + 1
        if n % 2 or runs[n] > 1:
            raise ValueError(n)

    made = await charge.enqueue_many([(n,) for n in range(jobs)])
    async with Worker(queue, concurrency=20):
        for job in made:
            await job.wait(timeout=30)


async def lives(queue: Queue) -> list[int]:
    return [job.life async for job in queue.find()]


async def all_have_ended(queue: Queue) -> None:
    async for job in queue.find():
        await queue.job(job.id).wait(timeout=30)


async def test_a_killed_rerun_that_another_process_continues_reruns_each_job_once(
    queue: Queue,
) -> None:
    if queue.url.startswith("memory://"):
        pytest.skip("a memory store lives in one process")
    await ended(queue)
    async with Worker(queue, concurrency=20):
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-c", CHILD, queue.name, queue.url, stdout=asyncio.subprocess.PIPE
        )
        assert child.stdout is not None
        cursor = ""
        while True:
            changed, cursor = (await child.stdout.readline()).decode().split()
            if int(changed) >= JOBS // 2:
                break
        child.kill()
        await child.communicate()
        await all_have_ended(queue)
        rest = await queue.select("completed", "failed").rerun(cursor=cursor)
        await all_have_ended(queue)
    assert rest.cursor is None
    assert await lives(queue) == [1] * JOBS


async def test_a_rerun_that_is_stopped_after_each_call_reruns_each_job_once(queue: Queue) -> None:
    await ended(queue)
    cursor: str | None = None
    async with Worker(queue, concurrency=20):
        for _ in range(JOBS):  # more often than needed
            done = await queue.select("completed", "failed").rerun(max_jobs=7, cursor=cursor)
            await all_have_ended(queue)
            if (cursor := done.cursor) is None:
                break
    assert await lives(queue) == [1] * JOBS


async def test_a_rerun_of_all_failed_jobs_reruns_each_once(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobq.operations.bulk.PAGE", 7)
    await ended(queue)
    async with Worker(queue, concurrency=20):
        assert await queue.rerun(name="*charge") == JOBS // 2
        await all_have_ended(queue)
    assert sorted(await lives(queue)) == [0] * (JOBS // 2) + [1] * (JOBS // 2)


async def test_a_job_that_ends_after_the_start_is_left_to_the_next_operation(queue: Queue) -> None:
    await ended(queue, 4)
    first = await queue.select("failed").rerun(max_jobs=1)
    async with Worker(queue):
        await all_have_ended(queue)
    rest = await queue.select("failed").rerun(cursor=first.cursor)
    assert (first.changed, rest.changed) == (1, 1)
    assert (await queue.select("failed").rerun()).changed == 1  # it has failed again


async def test_a_job_that_somebody_reruns_after_it_was_read_is_skipped(queue: Queue) -> None:
    await ended(queue, 6)
    seen: list[BulkProgress] = []
    reruns: list[asyncio.Task[Any]] = []

    def rerun_all(progress: BulkProgress) -> None:
        seen.append(progress)
        if not reruns:
            reruns.append(asyncio.create_task(queue.rerun()))

    done = await queue.select("failed").purge(pace=4, on_progress=rerun_all)
    assert (done.changed, done.skipped) == (1, 2)
    assert await reruns[0] == 2
    assert sorted(await lives(queue)) == [0, 0, 0, 1, 1]


async def test_the_clock_of_the_operator_may_be_behind_that_of_the_store(queue: Queue) -> None:
    await ended(queue, 4)
    context = queue._context
    wanted = queue.select("failed")._wanted
    change = BulkChange(
        await context.store(), context.qname, wanted, "rerun", actor=None, now_ms=1_000
    )
    assert (await change.run()).changed == 2


async def test_an_operation_looks_at_a_bounded_number_of_jobs_if_asked(queue: Queue) -> None:
    await queue.task_by_name("t").enqueue_many([(n,) for n in range(PAGE + 20)])
    context, changed, cursor, parts = queue._context, 0, None, 0
    while True:
        part = BulkChange(
            await context.store(),
            context.qname,
            queue.select("waiting", name="t*")._wanted,
            "cancel",
            actor=None,
            now_ms=context.now_ms(),
            max_compared=200,
            cursor=cursor,
        )
        done = await part.run()
        assert done.looked_at <= 200
        changed, parts, cursor = changed + done.changed, parts + 1, done.cursor
        if cursor is None:
            break
    assert (changed, parts) == (PAGE + 20, 3)


async def test_a_cancelled_operation_continues_where_it_was(queue: Queue) -> None:
    await ended(queue)
    seen: list[BulkProgress] = []
    async with Worker(queue, concurrency=20):
        running = asyncio.create_task(
            queue.select("completed", "failed").rerun(pace=200, on_progress=seen.append)
        )
        while not seen or seen[-1].changed < JOBS // 3:
            await asyncio.sleep(0)
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        await all_have_ended(queue)
        await queue.select("completed", "failed").rerun(cursor=seen[-1].cursor)
        await all_have_ended(queue)
    assert await lives(queue) == [1] * JOBS
