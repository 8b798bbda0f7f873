"""Batch tasks: one call handles many jobs, and each has its own arguments, result and state."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from jobq import (
    BatchTask,
    ConfigError,
    InvalidJob,
    JobFailed,
    JobNotFound,
    Queue,
    RateLimited,
    Reject,
    Snooze,
    State,
    Worker,
    current_job,
    testing,
)
from jobq.testing import Sandbox
from tests.api.deferrals import deferral


@dataclass
class Document:
    id: int
    text: str


class Index:
    """A batch task, and what it was called with."""

    def __init__(self, queue: Queue, **options: Any) -> None:
        self.calls: list[list[Document]] = []

        @queue.batch_task(size=10, retry=0, **options)
        async def index(documents: list[Document]) -> list[int | Exception]:
            self.calls.append(documents)
            return [
                len(document.text) if document.text else ValueError("it is empty")
                for document in documents
            ]

        self.index: BatchTask[Document] = index


async def test_one_call_for_many_jobs_and_a_result_for_each(queue: Queue) -> None:
    it = Index(queue)
    jobs = await it.index.enqueue_many([(Document(n, "x" * n),) for n in range(1, 13)])
    async with Worker(queue):
        assert [await job.result(timeout=10) for job in jobs] == list(range(1, 13))
    assert [len(call) for call in it.calls] == [10, 2]
    assert it.calls[0][0] == Document(1, "x")


async def test_an_exception_in_the_list_fails_that_job_alone(queue: Queue) -> None:
    it = Index(queue)
    good, bad = await it.index.enqueue(Document(1, "text")), await it.index.enqueue(Document(2, ""))
    async with Worker(queue):
        assert await good.result(timeout=10) == 4
        with pytest.raises(JobFailed, match="it is empty"):
            await bad.result(timeout=10)


async def test_an_item_that_does_not_fit_its_annotation_is_deferred_alone(queue: Queue) -> None:
    it = Index(queue)
    good = await it.index.enqueue(Document(1, "text"))
    bad = await queue.task_by_name("index").enqueue({"id": "one"})
    strange = await queue.task_by_name("index").enqueue(1, 2)
    async with Worker(queue):
        assert await good.result(timeout=10) == 4
        for job, said in (
            (bad, "argument documents of index"),
            (strange, "has one argument, its item; this one has 2"),
        ):
            assert said in await deferral(job)


async def test_an_item_may_retry_snooze_or_reject_its_own_job(
    jobs: Sandbox, clocked: Queue
) -> None:
    @clocked.batch_task(size=10)
    async def steer(items: list[str]) -> list[Any]:
        fates = {"snooze": Snooze(60), "reject": Reject("no"), "fine": 1}
        return [fates.get(item, RuntimeError(item)) for item in items]

    made = {item: await steer.enqueue(item) for item in ("snooze", "reject", "fine", "again")}
    assert await jobs.drain(concurrency=10) == 4
    infos = {item: await job.info() for item, job in made.items()}
    assert [infos[item].state for item in made] == [
        State.DELAYED,
        State.FAILED,
        State.COMPLETED,
        State.DELAYED,
    ]
    assert [infos[item].failures for item in made] == [0, 1, 0, 1]


async def test_all_fail_when_the_call_does(queue: Queue) -> None:
    @queue.batch_task(size=10, retry=0)
    async def broken(items: list[int]) -> list[int]:
        raise ConnectionError("no database")

    jobs = await broken.enqueue_many([(n,) for n in range(3)])
    async with Worker(queue):
        for job in jobs:
            with pytest.raises(JobFailed, match="no database"):
                await job.result(timeout=10)


async def test_a_rate_limited_batch_releases_all_its_jobs_and_uses_no_retry(
    jobs: Sandbox, clocked: Queue
) -> None:
    limited = True

    @clocked.batch_task(size=10, retry=0)
    async def bulk(items: list[int]) -> list[int]:
        if limited:
            raise RateLimited(30)
        return items

    made = await bulk.enqueue_many([(n,) for n in range(3)])
    await jobs.drain(concurrency=10)
    limited = False
    assert {(info := await job.info()).state for job in made} == {State.WAITING}
    jobs.clock.advance(30)
    assert await jobs.drain(concurrency=10) == 3
    assert [await job.result() for job in made] == [0, 1, 2]
    assert (info.failures, info.stalls) == (0, 0)


async def test_a_drain_does_not_wait_for_the_window(jobs: Sandbox, clocked: Queue) -> None:
    it = Index(clocked, window=3600)
    await it.index.enqueue_many([(Document(n, "x"),) for n in range(3)])
    assert await jobs.drain(concurrency=10) == 3
    assert [len(call) for call in it.calls] == [3]


async def test_plain_functions_take_batches_in_a_thread(queue: Queue) -> None:
    @queue.batch_task(size=10)
    def double(numbers: list[int]) -> list[int]:
        return [2 * n for n in numbers]

    assert queue.tasks["double"].executor == "thread"
    assert double([1, 2]) == [2, 4]
    async with Worker(queue):
        assert await double.call(4) == 8


async def test_calling_a_batch_task_runs_the_function_here(queue: Queue) -> None:
    it = Index(queue)
    assert await it.index([Document(1, "abc")]) == [3]


async def test_many_callers_who_wait_share_a_call(queue: Queue) -> None:
    it = Index(queue, window=0.2)
    async with Worker(queue):
        results = await asyncio.gather(*(it.index.call(Document(n, "x" * n)) for n in range(1, 11)))
    assert results == list(range(1, 11))
    assert len(it.calls) < 10


async def test_in_a_keyed_queue_a_batch_holds_one_job_per_key(url: str) -> None:
    async with Queue("keyed", url, mode="keyed") as queue:
        calls: list[list[str]] = []

        @queue.batch_task(size=10, key="item")
        async def touch(items: list[str]) -> list[str]:
            calls.append(items)
            return items

        jobs = await touch.enqueue_many([(item,) for item in "aabbc"])
        async with Worker(queue):
            for job in jobs:
                await job.wait(timeout=10)
        assert all(len(set(call)) == len(call) for call in calls)


async def test_there_is_no_current_job_in_a_batch(queue: Queue) -> None:
    @queue.batch_task(size=10, retry=0)
    async def which(items: list[int]) -> list[str]:
        with pytest.raises(JobNotFound):
            current_job()
        return ["none" for _ in items]

    async with Worker(queue):
        assert await which.call(1) == "none"


async def test_invalid_batch_tasks_are_refused(queue: Queue) -> None:
    async def fine(items: list[int]) -> list[int]:
        return items

    async def nothing() -> list[int]:
        return []

    async def two(items: list[int], more: int) -> list[int]:
        return items

    for options, said in (
        ({"size": 0}, "size=0"),
        ({"size": 10, "window": -1}, "window=-1"),
        ({"size": 99_999}, "size=99999"),
    ):
        with pytest.raises(ConfigError, match=said):
            queue.batch_task(**options)(fine)  # type: ignore[arg-type]
    wrong: tuple[Any, ...] = (nothing, two)
    for fn in wrong:
        with pytest.raises(ConfigError, match="must take one argument, the list of items"):
            queue.batch_task(size=10)(fn)
    task = queue.batch_task(size=10, name="fine")(fine)
    with pytest.raises(InvalidJob, match=r"fine\(item.*\)"):
        await task.enqueue(1, 2)  # type: ignore[call-arg]
    assert set(queue.tasks) == {"fine"}


async def test_a_batch_in_a_sandbox_is_no_larger_than_its_concurrency() -> None:
    shop = Queue("shop", "memory://nowhere")
    calls: list[int] = []

    @shop.batch_task(size=10)
    def count(items: list[int]) -> list[int]:
        calls.append(len(items))
        return items

    async with testing.use(shop) as jobs:
        await count.enqueue_many([(n,) for n in range(3)])
        assert await jobs.drain() == 3
    assert calls == [1, 1, 1]
