"""Metrics of runs and queues, in the registry of the real client."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from jobq import (
    Every,
    MissedTime,
    Queue,
    Reject,
    Retry,
    Snooze,
    Worker,
    current_job,
    prometheus,
    testing,
)
from jobq.prometheus import Metrics

NOW = Retry(max_retries=1, delays=[0])


class Counted:
    """What a registry has counted for the queue `mail`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry

    def __call__(self, name: str, **labels: str) -> float | None:
        whole = {"tenant": "default", "queue": "mail", **labels}
        return self.registry.get_sample_value(name, whole)

    def outcomes(self, task: str = "send") -> dict[str, float]:
        return {
            sample.labels["outcome"]: sample.value
            for family in self.registry.collect()
            for sample in family.samples
            if sample.name == "jobq_runs_total" and sample.labels["task"] == task and sample.value
        }


@pytest.fixture
def counted() -> Counted:
    return Counted(CollectorRegistry())


@pytest.fixture
async def queue(url: str, counted: Counted) -> AsyncIterator[Queue]:
    metrics = Metrics(counted.registry)
    async with Queue(
        "mail", url, middleware=[metrics.run], enqueue_middleware=[metrics.enqueue]
    ) as queue:
        yield queue


async def test_runs_are_counted_by_task_and_outcome(queue: Queue, counted: Counted) -> None:
    @queue.task(retry=NOW)
    async def send(how: str) -> None:
        if how == "snooze" and current_job().attempt == 1:
            raise Snooze(0)
        if how == "reject":
            raise Reject("no")
        if how == "fail":
            raise ValueError("no")

    async with Worker(queue):
        for how in ("return", "snooze", "reject", "fail"):
            await (await send.enqueue(how)).wait(timeout=10)
    assert counted.outcomes() == {"completed": 2, "snoozed": 1, "failed": 2, "retried": 1}
    assert counted("jobq_enqueued_total", task="send") == 4
    assert counted("jobq_run_seconds_count", task="send") == 6
    assert counted("jobq_runs_active", task="send") == 0


async def test_the_call_of_a_schedule_is_not_counted_as_enqueued(
    queue: Queue, counted: Counted
) -> None:
    @queue.task
    async def send() -> None: ...

    await queue.schedule("hourly", Every(3600), send)
    assert counted("jobq_enqueued_total", task="send") is None


async def test_a_running_job_is_active_also_in_a_thread(queue: Queue, counted: Counted) -> None:
    @queue.task
    def send() -> float | None:
        return counted("jobq_runs_active", task="send")

    async with Worker(queue):
        assert await (await send.enqueue()).result(timeout=10) == 1
    assert counted("jobq_runs_active", task="send") == 0
    # From 0 on: an alert on the increase must see the first failure.
    assert counted("jobq_runs_total", task="send", outcome="failed") == 0


async def test_a_timeout_counts_as_a_failure(queue: Queue, counted: Counted) -> None:
    @queue.task(retry=0, timeout=0.01)
    async def send() -> None:
        await asyncio.Event().wait()

    async with Worker(queue):
        await (await send.enqueue()).wait(timeout=10)
    assert counted.outcomes() == {"failed": 1}


async def test_a_run_that_goes_on_after_its_timeout_counts_as_a_failure(
    queue: Queue, counted: Counted
) -> None:
    timed_out = asyncio.Event()

    @queue.task(retry=0, timeout=0.01, grace=0)
    async def send() -> str:
        while not timed_out.is_set():
            try:
                await timed_out.wait()
            except asyncio.CancelledError:
                continue
        return "too late"

    async with Worker(queue):
        await (await send.enqueue()).wait(timeout=10)
        timed_out.set()
    assert counted.outcomes() == {"failed": 1}


async def test_a_stopping_worker_releases_its_jobs(queue: Queue, counted: Counted) -> None:
    begun = asyncio.Event()

    @queue.task
    async def send() -> None:
        begun.set()
        await asyncio.Event().wait()

    async with Worker(queue) as worker:
        await send.enqueue()
        await asyncio.wait_for(begun.wait(), 10)
        await worker.stop(drain=0)
    assert counted.outcomes() == {"released": 1}


async def test_each_job_of_a_batch_is_counted(queue: Queue, counted: Counted) -> None:
    @queue.batch_task(size=3, retry=0)
    async def send(items: list[int]) -> list[Any]:
        assert counted("jobq_runs_active", task="send") == 3
        return [ValueError("no") if n == 1 else n for n in items]

    sent = [await send.enqueue(n) for n in range(3)]
    async with Worker(queue):
        for job in sent:
            await job.wait(timeout=10)
    assert counted.outcomes() == {"completed": 2, "failed": 1}
    assert counted("jobq_run_seconds_count", task="send") == 1
    assert counted("jobq_enqueued_total", task="send") == 3


async def test_a_run_is_counted_once_if_the_worker_counts_too(
    queue: Queue, counted: Counted
) -> None:
    @queue.task
    async def send() -> None: ...

    async with Worker(queue, middleware=[Metrics(counted.registry).run]):
        await (await send.enqueue()).result(timeout=10)
    assert counted.outcomes() == {"completed": 1}


async def test_the_text_has_the_jobs_of_queues_beside_the_runs(
    queue: Queue, counted: Counted
) -> None:
    @queue.task
    async def send() -> None: ...

    await send.enqueue()
    await send.options(delay=3600).enqueue()
    await queue.pause()
    text = (await prometheus.render(queue, registry=counted.registry)).decode()
    found = {
        (sample.name, sample.labels.get("state")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.labels.get("queue") == "mail"
    }
    assert found["jobq_queue_jobs", "waiting"] == 1
    assert found["jobq_queue_jobs", "delayed"] == 1
    assert found["jobq_queue_jobs", "active"] == 0
    assert found["jobq_queue_paused", None] == 1
    assert found["jobq_store_up", None] == 1
    assert found["jobq_queue_latency_seconds", None] >= 0
    assert found["jobq_enqueued_total", None] == 2


async def test_an_unavailable_store_is_a_metric_and_no_error() -> None:
    away = Queue("mail", "valkey://127.0.0.1:1?timeout=0.2")
    try:
        text = (await prometheus.render(away, registry=CollectorRegistry())).decode()
    finally:
        await away.aclose()
    assert 'jobq_store_up{queue="mail",tenant="default"} 0.0' in text
    assert "jobq_queue_jobs{" not in text


async def test_a_store_that_does_not_respond_is_a_metric_and_no_hang(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prometheus, "_STORE_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        away = Queue("mail", f"valkey://127.0.0.1:{silent.getsockname()[1]}")
        try:
            async with asyncio.timeout(5):
                text = (await prometheus.render(away, registry=CollectorRegistry())).decode()
        finally:
            await away.aclose()
    assert 'jobq_store_up{queue="mail",tenant="default"} 0.0' in text


async def test_a_schedule_that_no_worker_fires_is_due_in_the_past(url: str) -> None:
    noon = datetime(2026, 3, 2, 12, tzinfo=UTC)
    queue = Queue("mail", url)

    @queue.task(name="send")
    async def send() -> None: ...

    async with testing.use(queue, clock=testing.FakeClock(noon)) as jobs:
        await queue.schedule("hourly", Every(3600), send)
        jobs.clock.advance(5 * 3600)
        families = {family.name: family for family in await prometheus.queue_metrics(queue)}
        (due,) = families["jobq_schedule_next_timestamp_seconds"].samples
        assert due.labels["schedule"] == "hourly"
        assert due.value == noon.timestamp() + 3600
        assert families["jobq_schedule_last_timestamp_seconds"].samples == []


async def test_a_time_that_passed_while_no_worker_ran_is_counted(
    url: str, counted: Counted, caplog: pytest.LogCaptureFixture
) -> None:
    noon = datetime(2026, 3, 2, 12, tzinfo=UTC)
    queue = Queue("mail", url)
    missed: asyncio.Queue[MissedTime] = asyncio.Queue()
    metrics = Metrics(counted.registry)

    def count(time: MissedTime) -> None:
        metrics.missed(time)
        missed.put_nowait(time)

    @queue.task
    async def send() -> None: ...

    async with testing.use(queue, clock=testing.FakeClock(noon)) as jobs:
        await queue.schedule("hourly", Every(3600), send)
        jobs.clock.advance(5.5 * 3600)
        async with Worker(queue, on_missed=count):
            time = await asyncio.wait_for(missed.get(), 10)
    assert time == MissedTime(
        tenant="default", queue="mail", schedule="hourly", at=noon + timedelta(hours=1)
    )
    assert counted("jobq_schedules_missed_total", schedule="hourly") == 1
    (warning,) = [r.getMessage() for r in caplog.records if "missed" in r.getMessage()]
    assert warning.startswith(
        "schedule hourly of queue mail missed its time 2026-03-02T13:00:00+00:00: it made no job"
    )


async def test_the_wait_for_the_first_run_is_observed_once_per_job(
    queue: Queue, counted: Counted
) -> None:
    @queue.task(retry=NOW)
    async def send() -> None:
        if current_job().attempt == 1:
            raise ValueError

    job = await send.enqueue()
    async with Worker(queue):
        await job.wait(timeout=30)
    assert counted("jobq_wait_seconds_count", task="send") == 1
    assert counted.outcomes() == {"retried": 1, "completed": 1}
