"""Metrics of a server for Prometheus: its calls, the jobs that pass through it, and its queues.

`ServerMetrics` counts at two seams. `called` is told of every RPC, and `CountedStore` is the
guarded store that counts what callers put, claim and settle. The gauges of queues are read from the
store when Prometheus asks, with bounded cost.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import TimeoutError as NoReply
from itertools import compress
from typing import TYPE_CHECKING

from grpc import StatusCode
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from jobq.access.guarded.store import GuardedStore
from jobq.access.principal import Principal
from jobq.access.quotas import TenantRules
from jobq.console.probes import Answer, Route
from jobq.core.records.jobs import (
    AnyOutcome,
    Claim,
    Complete,
    Fail,
    JobSpec,
    Lease,
    LeaseRef,
    LeaseState,
    PutResult,
    QueueName,
    RetryLater,
    Settled,
)
from jobq.core.records.queues import StatsRecord
from jobq.errors import JobqError
from jobq.prometheus import BUCKETS, rendered
from jobq.relay.status import RelayStatus
from jobq.server.context import ServerContext
from jobq.stores.base import Store

if TYPE_CHECKING:
    from jobq.server.hints import Hints

MAX_QUEUES = 1_000
"""Queues that have labels of their own. Names come from callers, and each costs some 60 series. The
jobs of further queues are counted together under `OTHER`."""
OTHER = "{other}"
"""The label of all further queues. Names of tenants and queues cannot contain braces."""
MAX_LEASES = 100_000
"""Running jobs whose start is remembered, to observe their run. Further ones are not observed."""

_STORE_S = 5.0
"""Seconds that the store has for all queues. Prometheus gives up after 10 s by default."""
_AT_ONCE = 16
"""Queues that are read at the same time, so that a scrape does not crowd out workers."""
_RPC_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
"""Seconds. A call takes about a millisecond; calls that wait take up to a minute."""
_QUEUE = ("tenant", "queue")
_OUTCOMES: dict[type, str] = {Complete: "completed", RetryLater: "retried", Fail: "failed"}
"""Outcomes that end a run. All others (released, snoozed, blocked, …) are `returned`."""


class ServerMetrics:
    """Everything that a server tells Prometheus."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.registry = registry = CollectorRegistry()
        self.relay: Callable[[], RelayStatus] | None = None
        """The status of the relay, if the server runs one."""
        self.hints: Hints | None = None
        """The hints of other servers, if there are any."""
        self._rpcs = Histogram(
            "jobq_rpc_seconds",
            "How long calls took, by method and status. A stream counts when it ends.",
            ("method", "code"),
            registry=registry,
            buckets=_RPC_BUCKETS,
        )
        self._submitted = _counter(
            registry, "jobq_jobs_submitted_total", "Jobs accepted. Duplicates do not count."
        )
        self._duplicates = _counter(
            registry, "jobq_jobs_duplicate_total", "Submits that found their job already there."
        )
        self._refused = _counter(
            registry, "jobq_jobs_refused_total", "Submits refused because the queue was full."
        )
        self._claimed = _counter(registry, "jobq_jobs_claimed_total", "Jobs given to workers.")
        self._settled = _counter(
            registry,
            "jobq_jobs_settled_total",
            "Runs that workers ended: completed, retried, failed (for good) or returned.",
            "outcome",
        )
        self._lost = _counter(
            registry,
            "jobq_leases_lost_total",
            "Renewals and reports refused because the lease had expired or was taken over.",
        )
        self._waits = _histogram(
            registry, "jobq_job_wait_seconds", "How long jobs waited for their first start."
        )
        self._runs = _histogram(registry, "jobq_job_run_seconds", "How long runs took.")
        self._labels: set[QueueName] = set()
        self._running: dict[str, float] = {}
        """Since when the jobs of these leases run, by the monotonic clock."""

    def attach(self, context: ServerContext) -> None:
        """Count the calls of this server. Call it before the server starts."""
        context.on_call = self.called
        context.guard = self._guard

    # ── counting ──────────────────────────────────────────────────────────────────────────────────

    def called(self, method: str, code: StatusCode, seconds: float) -> None:
        """A call has ended. Methods are those of our services, so their number is bounded."""
        self._rpcs.labels(method, code.name).observe(seconds)

    def _guard(self, store: Store, principal: Principal, tenants: TenantRules) -> GuardedStore:
        return CountedStore(store, principal, tenants, metrics=self)

    def submitted(self, specs: Sequence[JobSpec], results: Sequence[PutResult]) -> None:
        """Jobs were put."""
        counts: dict[tuple[Counter, QueueName], int] = {}
        for spec, result in zip(specs, results, strict=True):
            family = (
                self._refused
                if result.state is None
                else self._duplicates
                if result.duplicate
                else self._submitted
            )
            counts[family, spec.queue] = counts.get((family, spec.queue), 0) + 1
        for (family, queue), n in counts.items():
            family.labels(*self._of(queue)).inc(n)

    def settled(self, outcomes: Sequence[AnyOutcome], settled: Settled) -> None:
        """Runs have ended, and jobs were claimed."""
        now, stale = time.monotonic(), {ref.token for ref in settled.stale}
        for outcome in outcomes:
            started = self._running.pop(outcome.token, None)
            if outcome.token in stale:
                self._lost.labels(*self._known(outcome.queue)).inc()
                continue
            labels = self._of(outcome.queue)
            self._settled.labels(*labels, _OUTCOMES.get(type(outcome), "returned")).inc()
            if started is not None:
                self._runs.labels(*labels).observe(now - started)
        for lease in settled.leases:
            self._started(lease, now)

    def extended(self, leases: Sequence[LeaseRef], states: Sequence[LeaseState]) -> None:
        """Leases were renewed, or are lost."""
        for lease, state in zip(leases, states, strict=True):
            if state == "lost":
                self._running.pop(lease.token, None)
                self._lost.labels(*self._known(lease.queue)).inc()

    def _started(self, lease: Lease, now: float) -> None:
        labels = self._of(lease.queue)
        self._claimed.labels(*labels).inc()
        if lease.attempt == 1 and lease.due_ms:
            self._waits.labels(*labels).observe(max(0, lease.started_ms - lease.due_ms) / 1000)
        while len(self._running) >= MAX_LEASES:
            self._running.pop(next(iter(self._running)))  # the oldest: its worker may be gone
        self._running[lease.token] = now

    def _of(self, queue: QueueName) -> tuple[str, str]:
        """The labels of a queue."""
        if queue not in self._labels:
            if len(self._labels) >= MAX_QUEUES:
                return OTHER, OTHER
            self._labels.add(queue)
        return queue

    def _known(self, queue: QueueName) -> tuple[str, str]:
        """The labels of a queue that a caller names and that may not exist."""
        return queue if queue in self._labels else (OTHER, OTHER)

    # ── telling ───────────────────────────────────────────────────────────────────────────────────

    def route(self, loop: asyncio.AbstractEventLoop) -> Route:
        """The route /metrics. It runs in a thread of its own, and asks the store in `loop`."""

        def route() -> Answer:
            asked = asyncio.run_coroutine_threadsafe(self.gauges(), loop)
            try:
                found = asked.result(_STORE_S + 1)
            except NoReply:  # the loop is busy: what was counted is still worth a reply
                asked.cancel()
                found = []
            return Answer(200, self.text(found), CONTENT_TYPE_LATEST)

        return route

    def text(self, gauges: Sequence[Metric]) -> bytes:
        """All metrics in Prometheus' text format."""
        relay = b"" if self.relay is None else self.relay().prometheus().encode()
        hints = () if self.hints is None else _hint_metrics(self.hints)
        return rendered([*gauges, *hints], self.registry) + relay

    async def gauges(self) -> list[Metric]:
        """What the store tells about its queues, up to MAX_QUEUES of them.

        If the store is unavailable, `jobq_store_up` is 0, and there is nothing else."""
        up = GaugeMetricFamily("jobq_store_up", "Whether the store of the server responds.")
        try:
            async with asyncio.timeout(_STORE_S):
                names = [record.queue for record in await self._store.queues()]
                workers = await self._store.workers()
                stats = await self._stats(sorted(names)[:MAX_QUEUES])
        except (JobqError, TimeoutError):
            up.add_metric((), 0)
            return [up]
        up.add_metric((), 1)
        queues = GaugeMetricFamily("jobq_queues", "Queues in the store.", value=len(names))
        alive = GaugeMetricFamily("jobq_workers", "Live workers.", value=len(workers))
        slots = GaugeMetricFamily(
            "jobq_worker_slots",
            "Jobs that the live workers can run at once.",
            value=sum(worker.concurrency for worker in workers),
        )
        return [up, queues, alive, slots, *_queue_gauges(stats)]

    async def _stats(self, queues: Sequence[QueueName]) -> list[StatsRecord]:
        free = asyncio.Semaphore(_AT_ONCE)

        async def read(queue: QueueName) -> StatsRecord:
            async with free:
                return await self._store.stats(queue)

        return await asyncio.gather(*map(read, queues))


class CountedStore(GuardedStore):
    """A guarded store that tells the metrics what its caller puts, claims and settles."""

    def __init__(
        self, store: Store, principal: Principal, tenants: TenantRules, *, metrics: ServerMetrics
    ) -> None:
        super().__init__(store, principal, tenants)
        self._metrics = metrics

    async def put(
        self, specs: Sequence[JobSpec], *, flow: str | None = None, last: bool = True
    ) -> list[PutResult]:
        """Accept jobs."""
        results = await super().put(specs, flow=flow, last=last)
        self._metrics.submitted(specs, results)
        return results

    async def put_all(
        self, specs: Sequence[JobSpec], *, step: int, flow: str | None = None
    ) -> list[PutResult | JobqError]:
        """Accept jobs in several puts."""
        results = await super().put_all(specs, step=step, flow=flow)
        pairs = zip(specs, results, strict=True)
        stored = [(spec, each) for spec, each in pairs if isinstance(each, PutResult)]
        self._metrics.submitted([spec for spec, _ in stored], [each for _, each in stored])
        return results

    async def settle(
        self, outcomes: Sequence[AnyOutcome], *, worker: str, call: str, then: Claim | None = None
    ) -> Settled:
        """Apply outcomes, and claim."""
        settled = await super().settle(outcomes, worker=worker, call=call, then=then)
        own = [each for each in outcomes if self._is_own(each.queue.tenant)]
        self._metrics.settled(own, settled)
        return settled

    async def extend(self, leases: Sequence[LeaseRef], *, lease_ms: int) -> list[LeaseState]:
        """Renew leases."""
        states = await super().extend(leases, lease_ms=lease_ms)
        own = [self._is_own(each.queue.tenant) for each in leases]
        self._metrics.extended(list(compress(leases, own)), list(compress(states, own)))
        return states


def _hint_metrics(hints: Hints) -> list[Metric]:
    return [
        GaugeMetricFamily(
            "jobq_hints_up",
            "Whether the Valkey or Redis beside PostgreSQL responds. At 0, jobs may start later.",
            value=int(hints.up),
        ),
        CounterMetricFamily(
            "jobq_hints_sent", "Hints that told other servers of work.", value=hints.sent
        ),
        CounterMetricFamily("jobq_hints_heard", "Hints of other servers.", value=hints.heard),
    ]


def _queue_gauges(stats: Sequence[StatsRecord]) -> list[Metric]:
    depth = GaugeMetricFamily(
        "job_queue_depth", "Jobs of the queue by state.", labels=(*_QUEUE, "state")
    )
    latency = GaugeMetricFamily(
        "jobq_queue_latency_seconds",
        "How long the next job to start has waited; 0 if none waits.",
        labels=_QUEUE,
    )
    paused = GaugeMetricFamily("jobq_queue_paused", "Whether the queue is paused.", labels=_QUEUE)
    workers = GaugeMetricFamily("jobq_queue_workers", "Workers of the queue.", labels=_QUEUE)
    for each in stats:
        for state, count in each.counts.items():
            depth.add_metric((*each.queue, state.value), count)
        latency.add_metric(each.queue, (each.oldest_waiting_ms or 0) / 1000)
        paused.add_metric(each.queue, each.paused)
        workers.add_metric(each.queue, each.workers)
    return [depth, latency, paused, workers]


def _counter(registry: CollectorRegistry, name: str, help: str, *more: str) -> Counter:
    return Counter(name, help, (*_QUEUE, *more), registry=registry)


def _histogram(registry: CollectorRegistry, name: str, help: str) -> Histogram:
    return Histogram(name, help, _QUEUE, registry=registry, buckets=BUCKETS)
