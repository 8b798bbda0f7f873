"""Metrics for Prometheus, of runs and of queues. Needs `jobq[prometheus]`.

    metrics = jobq.prometheus.Metrics()
    mail = Queue("mail", middleware=[metrics.run], enqueue_middleware=[metrics.enqueue])

`jq-worker --metrics-port 9100` counts runs by itself and serves them with the metrics of its
queues. A web application returns `await jobq.prometheus.render(mail)` from its own /metrics.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from typing import Any, get_args
from weakref import WeakKeyDictionary

try:
    import prometheus_client  # noqa: F401 - only whether it is there
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "jobq.prometheus needs the package prometheus_client: pip install 'jobq[prometheus]'",
        name=error.name,
    ) from None

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    REGISTRY,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from jobq.api.current import CurrentJob
from jobq.api.enqueueing import EnqueueNext, EnqueueRequest
from jobq.api.info import QueueStats
from jobq.api.job import Job
from jobq.api.middleware import CallNext, Ended, OncePerRun, Outcome, endings_of
from jobq.api.queue import Queue
from jobq.api.schedule import ScheduleInfo
from jobq.api.worker_settings import MissedTime
from jobq.errors import StoreUnavailable

__all__ = ["BUCKETS", "CONTENT_TYPE", "Metrics", "queue_metrics", "render"]

CONTENT_TYPE = CONTENT_TYPE_LATEST
"""The content type of what `render` returns."""
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 3600)
"""Seconds. Jobs take from milliseconds to an hour."""

_STORE_S = 1.5
"""Seconds that a store has to respond. Prometheus gives up after 10 by default."""
_TASK = ("tenant", "queue", "task")
_QUEUE = ("tenant", "queue")


class Metrics:
    """Counts runs and enqueued jobs. `run` is a middleware, `enqueue` an enqueue middleware.

    Two of them with one registry share their metrics, and count each run once.
    """

    def __init__(
        self, registry: CollectorRegistry = REGISTRY, *, buckets: Sequence[float] = BUCKETS
    ) -> None:
        self._families = _families_of(registry, buckets)

    async def run(self, job: CurrentJob, call_next: CallNext) -> object:
        """Count a run, and measure how long it takes."""
        families = self._families
        if not families.once.enter(job):
            return await call_next(job)
        of_task, jobs = families.of_task(job), len(job.batch) or 1
        of_task.active.inc(jobs)
        of_task.wait(job)
        start = time.perf_counter()
        try:
            result = await call_next(job)
        except BaseException as error:
            of_task.count(endings_of(job, error=error))
            raise
        else:
            of_task.count(endings_of(job, result=result))
            return result
        finally:
            of_task.active.dec(jobs)
            of_task.seconds.observe(time.perf_counter() - start)

    async def enqueue(self, request: EnqueueRequest, call_next: EnqueueNext) -> Job[Any]:
        """Count a job that was enqueued. The jobs of schedules are not counted: workers make
        them."""
        job = await call_next(request)
        if request.via != "schedule":
            self._families.enqueued.labels(request.tenant, request.queue, request.name).inc()
        return job

    def missed(self, time: MissedTime) -> None:
        """Count that a schedule made no job although it was due: `Worker(on_missed=…)`."""
        self._families.missed.labels(time.tenant, time.queue, time.schedule).inc()


class _Families:
    """The metrics in one registry."""

    def __init__(self, registry: CollectorRegistry, buckets: Sequence[float]) -> None:
        self.once = OncePerRun("jobq_counted")
        self._of_tasks: dict[tuple[str, str, str], _OfTask] = {}
        self.enqueued = Counter(
            "jobq_enqueued_total", "Jobs that this process enqueued.", _TASK, registry=registry
        )
        self.runs = Counter(
            "jobq_runs_total",
            "Runs that ended, by outcome: completed, retried, failed (for good), snoozed, limited, "
            "blocked or released.",
            (*_TASK, "outcome"),
            registry=registry,
        )
        self.seconds = Histogram(
            "jobq_run_seconds",
            "How long runs took.",
            _TASK,
            registry=registry,
            buckets=buckets,
        )
        self.waited = Histogram(
            "jobq_wait_seconds",
            "How long jobs waited for their first run, since they were due.",
            _TASK,
            registry=registry,
            buckets=buckets,
        )
        self.active = Gauge(
            "jobq_runs_active",
            "Jobs that run now.",
            _TASK,
            registry=registry,
            multiprocess_mode="livesum",
        )
        self.missed = Counter(
            "jobq_schedules_missed_total",
            "Times that a schedule made no job although its time had come.",
            (*_QUEUE, "schedule"),
            registry=registry,
        )

    def of_task(self, job: CurrentJob) -> _OfTask:
        labels = (job.tenant, job.queue, job.name)
        found = self._of_tasks.get(labels)
        if found is None:
            found = self._of_tasks[labels] = _OfTask(self, labels)
        return found


class _OfTask:
    """The metrics of one task. Looking up labels costs more than counting, so it is done once."""

    def __init__(self, families: _Families, labels: tuple[str, str, str]) -> None:
        self.active = families.active.labels(*labels)
        self.seconds = families.seconds.labels(*labels)
        self._waited = families.waited.labels(*labels)
        self._runs = {
            outcome: families.runs.labels(*labels, outcome) for outcome in get_args(Outcome)
        }

    def wait(self, job: CurrentJob) -> None:
        """Observe how long the jobs of a run waited, if it is their first."""
        for each in job.batch or (job,):
            lease = each._run.lease
            if lease.attempt == 1 and lease.due_ms:
                self._waited.observe(max(0, lease.started_ms - lease.due_ms) / 1000)

    def count(self, endings: Sequence[Ended]) -> None:
        for ended in endings:
            self._runs[ended.ending.outcome].inc()


_known: WeakKeyDictionary[CollectorRegistry, _Families] = WeakKeyDictionary()


def _families_of(registry: CollectorRegistry, buckets: Sequence[float]) -> _Families:
    families = _known.get(registry)
    if families is None:
        families = _known[registry] = _Families(registry, buckets)
    return families


async def queue_metrics(*queues: Queue) -> list[Metric]:
    """What the store tells about these queues: how many jobs are in which state, and so on.

    If a store is unavailable, `jobq_store_up` of its queues is 0, and there is nothing else.
    """
    up = GaugeMetricFamily("jobq_store_up", "Whether the queue's store responds.", labels=_QUEUE)
    jobs = GaugeMetricFamily("jobq_queue_jobs", "Jobs by state.", labels=(*_QUEUE, "state"))
    latency = GaugeMetricFamily(
        "jobq_queue_latency_seconds",
        "How long the next job to start has waited; 0 if none waits.",
        labels=_QUEUE,
    )
    paused = GaugeMetricFamily("jobq_queue_paused", "Whether the queue is paused.", labels=_QUEUE)
    workers = GaugeMetricFamily("jobq_queue_workers", "Workers of the queue.", labels=_QUEUE)
    due = GaugeMetricFamily(
        "jobq_schedule_next_timestamp_seconds",
        "When the schedule is due. Long in the past: no worker fires it.",
        labels=(*_QUEUE, "schedule"),
    )
    last = GaugeMetricFamily(
        "jobq_schedule_last_timestamp_seconds",
        "The last time that the schedule made a job for.",
        labels=(*_QUEUE, "schedule"),
    )
    read = await asyncio.gather(*map(_read, queues))
    for queue, found in zip(queues, read, strict=True):
        labels = (queue.tenant, queue.name)
        up.add_metric(labels, found is not None)
        if found is None:
            continue
        stats, schedules = found
        for state, count in stats.counts.items():
            jobs.add_metric((*labels, state.value), count)
        oldest = stats.oldest_waiting
        latency.add_metric(labels, 0 if oldest is None else oldest.total_seconds())
        paused.add_metric(labels, stats.paused)
        workers.add_metric(labels, stats.workers)
        for schedule in schedules:
            if schedule.next_at is not None and not schedule.paused:
                due.add_metric((*labels, schedule.id), schedule.next_at.timestamp())
            if schedule.last_at is not None:
                last.add_metric((*labels, schedule.id), schedule.last_at.timestamp())
    return [up, jobs, latency, paused, workers, due, last]


async def _read(queue: Queue) -> tuple[QueueStats, list[ScheduleInfo]] | None:
    """What the store tells about a queue. None if it does not respond."""
    try:
        async with asyncio.timeout(_STORE_S):
            return await queue.stats(), await queue.schedules()
    except (StoreUnavailable, TimeoutError):
        return None


async def render(*queues: Queue, registry: CollectorRegistry = REGISTRY) -> bytes:
    """The metrics of the registry and of these queues, in Prometheus' text format."""
    return rendered(await queue_metrics(*queues), registry)


def rendered(metrics: Iterable[Metric], registry: CollectorRegistry = REGISTRY) -> bytes:
    """The metrics of the registry, and these, in Prometheus' text format."""
    more = CollectorRegistry(auto_describe=False)
    more.register(_Found(list(metrics)))
    return generate_latest(registry) + generate_latest(more)


class _Found(Collector):
    """Metrics that were collected before."""

    def __init__(self, metrics: Sequence[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics
