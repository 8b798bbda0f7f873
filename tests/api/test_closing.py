"""Closing a queue while a call waits for one of its jobs."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from jobq import Queue, QueueClosed, State, Worker
from jobq.stores import open_store
from tests.waiting import nothing_happens, until


async def started(queue: Queue) -> int:
    return (await queue.counts())[State.ACTIVE]


@pytest.fixture(autouse=True)
async def kept(queue: Queue) -> AsyncIterator[None]:
    """A handle of its own, so that what is in memory outlives the queue's."""
    async with open_store(queue.url):
        yield


@pytest.mark.parametrize("how", ["result", "wait", "call"])
async def test_a_wait_ends_at_once_when_its_queue_is_closed(queue: Queue, how: str) -> None:
    @queue.task
    async def work() -> int:
        return 1

    job = await work.enqueue()
    waits: dict[str, Callable[[], Coroutine[Any, Any, object]]] = {
        "result": job.result,
        "wait": job.wait,
        "call": work.call,
    }
    waiting = asyncio.ensure_future(waits[how]())
    asked = 2 if how == "call" else 1
    while (await queue.counts())[State.WAITING] < asked:
        await asyncio.sleep(0)
    for _ in range(20):  # until it waits for a signal
        await asyncio.sleep(0)
    await queue.aclose()
    async with asyncio.timeout(2):
        with pytest.raises(QueueClosed, match="was closed while a call waited for job"):
            await waiting
    assert (await queue.counts())[State.WAITING] == asked  # nothing was cancelled


async def test_a_wait_ends_at_once_also_where_a_worker_keeps_the_store_open(queue: Queue) -> None:
    let_go = asyncio.Event()

    @queue.task
    async def work() -> int:
        await let_go.wait()
        return 1

    async with Worker(queue):
        job = await work.enqueue()
        waiting = asyncio.ensure_future(job.result())
        await until(lambda: started(queue), "the job to start")
        await queue.aclose()
        async with asyncio.timeout(2):
            with pytest.raises(QueueClosed):
                await waiting
        let_go.set()
        assert await job.result(timeout=20) == 1


async def test_a_wait_whose_queue_is_closed_opens_nothing_on_the_closed_store(
    tmp_path: Path,
) -> None:
    """A mailbox that nobody closes is a ResourceWarning, which fails the test."""
    queue = Queue("work", f"sqlite:///{tmp_path / 'jobs.db'}")

    @queue.task
    async def work() -> int:
        return 1

    waiting = asyncio.ensure_future(work.call())
    while not (await queue.counts())[State.WAITING]:
        await asyncio.sleep(0)
    await queue.aclose()
    with pytest.raises(QueueClosed):
        await waiting
    del waiting
    gc.collect()


async def test_a_wait_that_only_begins_when_the_queue_closes_ends_too(queue: Queue) -> None:
    @queue.task
    async def work() -> int:
        return 1

    job = await work.enqueue()
    for steps in range(12):  # wherever in its first steps the wait is
        waiting = asyncio.ensure_future(job.result(timeout=20))
        for _ in range(steps):
            await asyncio.sleep(0)
        await queue.aclose()
        if steps:
            async with asyncio.timeout(2):
                with pytest.raises(QueueClosed):
                    await waiting
        else:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)


async def test_another_queue_of_the_same_store_is_left_alone(queue: Queue) -> None:
    @queue.task
    async def work() -> int:
        return 1

    other = Queue(queue.name, queue.url, tenant=queue.tenant)
    async with other:
        job = await work.enqueue()
        waiting = asyncio.ensure_future(other.job(job.id).result(timeout=20))
        await nothing_happens(0.02, "the wait ends before its queue is closed")
        await queue.aclose()
        async with Worker(queue):
            assert await waiting == 1
