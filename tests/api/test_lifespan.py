"""The lifespan of a worker: opened before its first job, closed after its last."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest

from jobq import ConfigError, CurrentJob, JobFailed, Queue, Worker, current_job
from jobq.executors.lifespan import Lifespan


class Resources:
    def __init__(self) -> None:
        self.open = True


async def test_handlers_and_middleware_get_its_value_and_it_closes_after_the_last_job(
    queue: Queue,
) -> None:
    trace: list[str] = []

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[Resources]:
        resources = Resources()
        trace.append("open")
        async with asyncio.TaskGroup():  # has to be left in the task that entered it
            yield resources
        resources.open = False
        trace.append("closed")

    async def watches(job: CurrentJob, call_next: Any) -> object:
        trace.append(f"middleware {job.lifespan(Resources).open}")
        return await call_next(job)

    started = asyncio.Event()

    @queue.task
    async def work() -> bool:
        started.set()
        await asyncio.sleep(0)
        trace.append("work")
        return current_job().lifespan(Resources).open

    async with Worker(queue, lifespan=lifespan, middleware=[watches]):
        job = await work.enqueue()
        await asyncio.wait_for(started.wait(), 20)
    assert await job.result(timeout=20) is True
    assert trace == ["open", "middleware True", "work", "closed"]


async def test_a_plain_context_manager_that_takes_the_worker_will_do(queue: Queue) -> None:
    @contextmanager
    def lifespan(worker: Worker) -> Iterator[str]:
        yield f"of {worker.name}"

    @queue.task
    def work() -> str:
        return current_job().lifespan(str)

    async with Worker(queue, name="w1", lifespan=lifespan):
        assert await work.call() == "of w1"


async def test_an_error_at_the_start_is_raised_and_the_worker_does_not_start(queue: Queue) -> None:
    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        raise OSError("no database")
        yield

    worker = Worker(queue, lifespan=lifespan)
    with pytest.raises(OSError, match="no database"):
        await worker.run()
    assert (worker.running, await queue.workers()) == (False, [])


async def test_an_error_at_the_end_is_logged(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        yield
        raise OSError("cannot close")

    async with Worker(queue, lifespan=lifespan):
        pass
    assert "the clean-up of the worker's lifespan failed" in caplog.text


async def test_a_clean_up_that_hangs_is_cancelled(caplog: pytest.LogCaptureFixture) -> None:
    ended: list[str] = []

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        yield
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")

    hanging = Lifespan(lifespan, None, lambda: None)
    await hanging.start()
    await asyncio.wait_for(hanging.stop(timeout_s=0.01), 20)
    assert ended == ["cancelled"]
    assert "takes over 0.01 s: cancelled" in caplog.text


async def test_a_worker_that_is_stopped_while_its_lifespan_hangs_at_the_start_ends_well(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    entering = asyncio.Event()

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        entering.set()
        await asyncio.Event().wait()
        yield

    monkeypatch.setattr(Lifespan.stop, "__defaults__", (0.01,))
    worker = Worker(queue, lifespan=lifespan)
    working = asyncio.create_task(worker.run())
    await asyncio.wait_for(entering.wait(), 10)
    await worker.stop()
    await asyncio.wait_for(working, 10)  # a requested stop is no error


async def test_a_lifespan_that_ends_by_itself_stops_the_worker(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        async def breaks() -> None:
            raise OSError("the connection is lost")

        async with asyncio.TaskGroup() as group:
            group.create_task(breaks())
            yield

    await asyncio.wait_for(Worker(queue, lifespan=lifespan).run(), 20)
    assert "its lifespan ended by itself" in caplog.text


async def test_a_value_of_another_type_is_refused_with_words(queue: Queue) -> None:
    @queue.task(retry=0)
    async def work() -> None:
        current_job().lifespan(Resources)

    async with Worker(queue):
        with pytest.raises(JobFailed, match=r"yielded nothing: give Worker\(…, lifespan=…\)"):
            await work.call()


@pytest.mark.parametrize("wrong", [3, "module:lifespan"])
def test_a_lifespan_that_is_no_function_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="lifespan"):
        Worker(Queue(), lifespan=wrong)


async def test_a_function_that_returns_no_context_manager_is_refused(queue: Queue) -> None:
    def lifespan() -> int:
        return 1

    with pytest.raises(ConfigError, match="not a context manager"):
        async with Worker(queue, lifespan=lifespan):  # type: ignore[arg-type]
            pass
