"""All telemetry around one run, on the queue and on the worker: each sees the same end of it."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind
from prometheus_client import CollectorRegistry

from jobq import Job, Queue, RateLimited, Retry, Worker, current_job
from jobq.core.records.jobs import JobSpec
from jobq.otel import Telemetry
from jobq.prometheus import Metrics
from jobq.sentry import Sentry
from tests.api.deferrals import deferral
from tests.telemetry.apps import apart
from tests.telemetry.test_sentry import Kept, sent
from tests.waiting import until

__all__ = ["sent"]  # a fixture

NOW = Retry(max_retries=1, delays=[0])


class Eyes:
    """The telemetry, and what each of them saw."""

    def __init__(self, reported: Kept) -> None:
        self._reported = reported
        self._spans = InMemorySpanExporter()
        self._registry = CollectorRegistry()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._spans))
        self.telemetry = Telemetry(tracer_provider=provider)
        self.metrics = Metrics(self._registry)
        self.reporting = Sentry()
        self.run = [self.telemetry.run, self.reporting.run, self.metrics.run]
        self.enqueue = [self.telemetry.enqueue, self.reporting.enqueue, self.metrics.enqueue]

    @property
    def counted(self) -> dict[str, int]:
        found: Counter[str] = Counter()
        for family in self._registry.collect():
            for sample in family.samples:
                if sample.name == "jobq_runs_total" and sample.value:
                    found[sample.labels["outcome"]] += int(sample.value)
        return dict(found)

    @property
    def traced(self) -> dict[str, int]:
        spans = [s for s in self._spans.get_finished_spans() if s.kind is SpanKind.CONSUMER]
        return dict(Counter(str((span.attributes or {})["jobq.outcome"]) for span in spans))

    def saw(self, **outcomes: int) -> None:
        """Check that all saw these outcomes, and that Sentry got the failures."""
        assert self.counted == outcomes
        assert self.traced == outcomes
        assert len(self._reported.errors) == outcomes.get("failed", 0)


@pytest.fixture
def eyes(sent: Kept) -> Eyes:
    return Eyes(sent)


@pytest.fixture
async def queue(url: str, eyes: Eyes) -> AsyncIterator[Queue]:
    async with Queue("mail", url, middleware=eyes.run, enqueue_middleware=eyes.enqueue) as queue:
        yield queue


async def cancelled(queue: Queue, worker: Worker) -> dict[str, int]:
    begun = asyncio.Event()

    @queue.task
    async def work() -> None:
        begun.set()
        await asyncio.Event().wait()

    job = await work.enqueue()
    await asyncio.wait_for(begun.wait(), 10)
    await job.cancel()
    await job.wait(timeout=10)
    return {"released": 1}


async def signalled(queue: Queue, worker: Worker) -> dict[str, int]:
    @queue.task
    async def work() -> Any:
        return await current_job().wait_for_signal("go")

    job = await work.enqueue()
    await until(lambda: _is(job, "blocked"), "the job to wait")
    await job.signal("go", 7)
    assert await job.result(timeout=10) == 7
    return {"blocked": 1, "completed": 1}


async def with_children_that_fail(queue: Queue, worker: Worker) -> dict[str, int]:
    @queue.task(retry=NOW)
    async def child() -> None:
        raise ValueError("no")

    @queue.task(on_child_failure="continue")
    def parent() -> None:
        job = current_job().sync
        job.add(child)
        job.wait_for_children()

    await (await parent.enqueue()).result(timeout=10)
    return {"blocked": 1, "retried": 1, "failed": 1, "completed": 1}


async def limited(queue: Queue, worker: Worker) -> dict[str, int]:
    @queue.task
    async def work() -> None:
        if current_job().attempt == 1:
            raise RateLimited(0.01)

    await (await work.enqueue()).result(timeout=10)
    return {"limited": 1, "completed": 1}


async def in_a_thread_that_times_out(queue: Queue, worker: Worker) -> dict[str, int]:
    @queue.task(retry=0, timeout=0.05)
    def work() -> None:
        while not current_job().cancelled:
            threading.Event().wait(0.005)

    await (await work.enqueue()).wait(timeout=10)
    return {"failed": 1}


async def that_exits(queue: Queue, worker: Worker) -> dict[str, int]:
    @queue.task(retry=0)
    async def work() -> None:
        raise SystemExit(3)

    await (await work.enqueue()).wait(timeout=10)
    return {"failed": 1}


async def with_arguments_that_do_not_fit(queue: Queue, worker: Worker) -> dict[str, int]:
    @queue.task(retry=0)
    async def work(n: int) -> None: ...

    job = await queue.task_by_name("work").enqueue()
    assert "do not fit" in await deferral(job)
    return {"released": 1}


async def with_arguments_that_cannot_be_decoded(queue: Queue, worker: Worker) -> dict[str, int]:
    @queue.task(retry=0)
    async def work(n: int) -> None: ...

    store = await queue._context.store()
    await store.put([JobSpec(queue=queue._context.qname, id="x", name="work", payload=b"{")])
    await queue.job("x").wait(timeout=10)
    return {"failed": 1}


async def with_steps(queue: Queue, worker: Worker) -> dict[str, int]:
    ran: list[int] = []

    @queue.task(retry=NOW)
    async def work() -> None:
        await current_job().step("charge", lambda: ran.append(1))
        if current_job().attempt == 1:
            raise ValueError("after the step")

    await (await work.enqueue()).result(timeout=10)
    assert ran == [1]
    return {"retried": 1, "completed": 1}


Scene = Callable[[Queue, Worker], Awaitable[dict[str, int]]]


@pytest.mark.parametrize(
    "scene",
    [
        cancelled,
        signalled,
        with_children_that_fail,
        limited,
        in_a_thread_that_times_out,
        that_exits,
        with_arguments_that_do_not_fit,
        with_arguments_that_cannot_be_decoded,
        with_steps,
    ],
    ids=lambda scene: scene.__name__,
)
async def test_all_see_the_end_of_a_job(queue: Queue, eyes: Eyes, scene: Scene) -> None:
    async with Worker(queue, middleware=eyes.run, grace=1) as worker:
        outcomes = await scene(queue, worker)
    eyes.saw(**outcomes)


@pytest.mark.parametrize(
    ("task", "outcomes"),
    [
        (apart.fail_apart, {"failed": 1}),
        (apart.die_apart, {"failed": 1}),
        (apart.hang_apart, {"failed": 1}),
        (apart.snooze_apart, {"snoozed": 1, "completed": 1}),
    ],
    ids=["fails", "dies", "hangs", "snoozes"],
)
async def test_all_see_the_end_of_a_job_in_a_child_process(
    url: str, eyes: Eyes, task: Any, outcomes: dict[str, int]
) -> None:
    apart.failing._context.connection.move(url)
    try:
        async with apart.failing, Worker(apart.failing, pool=1, middleware=eyes.run):
            await (await task.enqueue()).wait(timeout=30)
    finally:
        await apart.failing._context.connection.move_back()
    eyes.saw(**outcomes)


async def _is(job: Job[Any], state: str) -> bool:
    return (await job.info()).state == state
