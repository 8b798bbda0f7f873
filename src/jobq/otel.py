"""Traces and metrics with OpenTelemetry, by its conventions for messaging. Needs `jobq[otel]`.

    telemetry = jobq.otel.Telemetry()
    mail = Queue("mail", middleware=[telemetry.run], enqueue_middleware=[telemetry.enqueue])

`enqueue` makes a producer span and stores its context in the job's `meta`, as the W3C headers
`traceparent` and `tracestate`. Each run makes a consumer span in the trace in which the job was
enqueued, so a retry, a child or a job of a flow is in that trace too. Spans that the handler makes
are below the consumer span, also in threads.

A jq-server makes two spans of its own in that trace: one for the submit of a job, between the
producer and the consumer, and one for each claim, which is the parent of the consumer span.

The span of a batch is the root of a trace of its own, with a link to each job. The span of a job
that waited for others has a link to each of them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, cast

try:
    import opentelemetry.trace  # noqa: F401 - only whether it is there
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "jobq.otel needs the package opentelemetry-api: pip install 'jobq[otel]'", name=error.name
    ) from None

from msgspec.structs import replace
from opentelemetry import metrics, propagate, trace
from opentelemetry.context import Context
from opentelemetry.metrics import MeterProvider
from opentelemetry.propagators.textmap import TextMapPropagator
from opentelemetry.trace import (
    Link,
    ProxyTracerProvider,
    Span,
    SpanKind,
    Status,
    StatusCode,
    TracerProvider,
)

from jobq.api.current import CurrentJob, current_job
from jobq.api.enqueueing import EnqueueNext, EnqueueRequest
from jobq.api.job import Job
from jobq.api.middleware import CallNext, Ended, OncePerRun, endings_of
from jobq.api.worker_settings import MissedTime
from jobq.core.records.jobs import (
    AnyOutcome,
    Claim,
    Failure,
    JobSpec,
    Lease,
    PutResult,
    QueueName,
    Settled,
)
from jobq.core.values.error_names import public_name
from jobq.core.values.meta import check_meta
from jobq.core.version import __version__
from jobq.engine.handler import FailedApart
from jobq.errors import InvalidJob, JobqError
from jobq.stores.base import Store

__all__ = ["Telemetry", "job_context", "with_server_spans"]

_MAX_LINKS = 128
"""Links of a span. The SDK keeps no more by default."""
_MAX_CARRIED = 1024
"""Bytes of a header that `meta` carries. Longer ones, of large baggage, are left out."""
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 3600)
"""Seconds. Jobs take from milliseconds to an hour."""

_once = OncePerRun("jobq_traced")


class Telemetry:
    """`run` is a middleware, `enqueue` an enqueue middleware.

    Without arguments, it uses the global providers and the global propagator.
    """

    def __init__(
        self,
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        propagator: TextMapPropagator | None = None,
    ) -> None:
        self._propagator = propagator
        self._tracer = trace.get_tracer("jobq", __version__, tracer_provider)
        meter = metrics.get_meter("jobq", __version__, meter_provider)
        self._sent = meter.create_counter(
            "messaging.client.sent.messages", "{message}", "Jobs that this process enqueued."
        )
        self._consumed = meter.create_counter(
            "messaging.client.consumed.messages", "{message}", "Runs that ended."
        )
        self._duration = meter.create_histogram(
            "messaging.process.duration",
            "s",
            "How long runs took.",
            explicit_bucket_boundaries_advisory=_BUCKETS,
        )
        self._missed = meter.create_counter(
            "jobq.schedule.missed",
            "{time}",
            "Times that a schedule made no job although its time had come.",
        )

    async def enqueue(self, request: EnqueueRequest, call_next: EnqueueNext) -> Job[Any]:
        """Enqueue a job in a producer span, whose context the job carries.

        A schedule gets neither: its jobs do not belong to the trace that stored it."""
        if request.via == "schedule":
            return await call_next(request)
        attributes = _attributes(request, "enqueue", "send")
        with self._tracer.start_as_current_span(
            f"enqueue {request.queue}", kind=SpanKind.PRODUCER, attributes=attributes
        ) as span:
            self._carry(request)
            try:
                job = await call_next(request)
            except Exception as error:
                self._sent.add(1, {**attributes, "error.type": _type_name(error)})
                span.set_attribute("error.type", _type_name(error))
                raise
            span.set_attribute("messaging.message.id", job.id)
            self._sent.add(1, attributes)
            return job

    async def run(self, job: CurrentJob, call_next: CallNext) -> object:
        """Run a job, or a batch, in a consumer span."""
        if not _once.enter(job):  # the worker and the queue both have this middleware
            return await call_next(job)
        attributes = _attributes(job, "process", "process")
        with self._tracer.start_as_current_span(
            f"process {job.queue}",
            context=Context() if job.batch else _extracted(job.meta, self._propagator),
            kind=SpanKind.CONSUMER,
            attributes={**attributes, **_message(job)},
            links=await self._links(job),
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            start = time.perf_counter()
            try:
                result = await call_next(job)
            except BaseException as error:
                seconds = time.perf_counter() - start
                self._ended(span, attributes, endings_of(job, error=error), seconds)
                raise
            seconds = time.perf_counter() - start
            self._ended(span, attributes, endings_of(job, result=result), seconds)
            return result

    def missed(self, time: MissedTime) -> None:
        """Count that a schedule made no job although it was due: `Worker(on_missed=…)`."""
        self._missed.add(
            1,
            {
                "messaging.destination.name": time.queue,
                "jobq.tenant": time.tenant,
                "jobq.schedule": time.schedule,
            },
        )

    def _ended(
        self, span: Span, attributes: Mapping[str, str], ended: Sequence[Ended], seconds: float
    ) -> None:
        for job, ending, error in ended:
            measured = {**attributes, "jobq.outcome": ending.outcome}
            if ending.failure is not None:
                measured["error.type"] = ending.failure.type
                span.set_attribute("error.type", ending.failure.type)
                span.set_status(Status(StatusCode.ERROR, ending.failure.message or None))
                _record(span, job, ending.failure, error)
            self._consumed.add(1, measured)
        if ended:
            outcomes = {each.ending.outcome for each in ended}
            outcome = outcomes.pop() if len(outcomes) == 1 else "mixed"
            span.set_attribute("jobq.outcome", outcome)
            self._duration.record(seconds, {**attributes, "jobq.outcome": outcome})

    def _carry(self, request: EnqueueRequest) -> None:
        """Store the context of the current span in the job's meta, if there is room."""
        request.meta.update(_carried(request.meta, None, self._propagator))

    async def _links(self, job: CurrentJob) -> list[Link]:
        """The jobs of a batch, or the jobs that this one waited for."""
        metas = [each.meta for each in job.batch] or await _inputs(job)
        found = (_extracted(meta, self._propagator) for meta in metas[:_MAX_LINKS])
        contexts = (trace.get_current_span(each).get_span_context() for each in found)
        return [Link(context) for context in contexts if context.is_valid]


def job_context() -> Context:
    """The context in which the current job was enqueued.

    In a child process there is no consumer span: pass this to the spans that the handler makes."""
    return _extracted(current_job().meta, None)


def _extracted(meta: Mapping[str, str], propagator: TextMapPropagator | None) -> Context:
    # From an empty context: what the worker itself is in must not be the parent of a job.
    return (propagator or propagate.get_global_textmap()).extract(dict(meta), context=Context())


def _carried(
    meta: Mapping[str, str], context: Context | None, propagator: TextMapPropagator | None
) -> dict[str, str]:
    """The meta of a job with this context, or with the current one, if there is room for it."""
    found, headers = dict(meta), dict[str, str]()
    (propagator or propagate.get_global_textmap()).inject(headers, context=context)
    for name, value in headers.items():
        try:
            if len(value) <= _MAX_CARRIED and check_meta({**found, name: value}):
                found[name] = value
        except InvalidJob:  # the meta is full: the job is worth more than its trace
            break
    return found


# ── a server ──────────────────────────────────────────────────────────────────────────────────────


def with_server_spans(
    store: Store,
    *,
    tracer_provider: TracerProvider | None = None,
    propagator: TextMapPropagator | None = None,
) -> Store:
    """The store of a jq-server, which makes a span for each submit and for each claim of a job.

    Only jobs whose producer was traced get spans. Without a tracer provider, the store is returned
    as it is.
    """
    provider = tracer_provider or trace.get_tracer_provider()
    if isinstance(provider, ProxyTracerProvider | trace.NoOpTracerProvider):
        return store
    return cast(Store, _TracedStore(store, provider, propagator))


class _TracedStore:
    """Makes spans around `put` and `settle`. All other calls are those of the store."""

    def __init__(
        self, store: Store, provider: TracerProvider, propagator: TextMapPropagator | None
    ) -> None:
        self._store = store
        self._tracer = trace.get_tracer("jobq", __version__, provider)
        self._propagator = propagator

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def put(
        self, specs: Sequence[JobSpec], *, flow: str | None = None, last: bool = True
    ) -> list[PutResult]:
        """See HotStore. A stored job carries the context of its span."""
        start = time.time_ns()
        spans: dict[int, Span] = {}
        traced: list[JobSpec] = []
        for n, spec in enumerate(specs):
            span = self._span("submit", spec.queue, spec.id, spec.name, spec.meta, start)
            if span is not None:
                spans[n] = span
                spec = replace(spec, meta=self._within(spec.meta, span))
            traced.append(spec)
        if not spans:
            return await self._store.put(specs, flow=flow, last=last)
        try:
            results = await self._store.put(traced, flow=flow, last=last)
        except BaseException as error:
            for span in spans.values():
                span.set_attribute("error.type", _type_name(error))
                span.set_status(Status(StatusCode.ERROR))
                span.end()
            raise
        for n, span in spans.items():
            if results[n].duplicate:
                span.set_attribute("jobq.duplicate", True)
            if results[n].state is None:
                span.set_status(Status(StatusCode.ERROR, "the queue is full"))
            span.end()
        return results

    async def settle(
        self, outcomes: Sequence[AnyOutcome], *, worker: str, call: str, then: Claim | None = None
    ) -> Settled:
        """See HotStore. A lease carries the context of its span."""
        start = time.time_ns()
        settled = await self._store.settle(outcomes, worker=worker, call=call, then=then)
        if not any(lease.meta for lease in settled.leases):
            return settled
        leases = tuple(self._pushed(lease, start) for lease in settled.leases)
        return replace(settled, leases=leases)

    def _pushed(self, lease: Lease, start: int) -> Lease:
        span = self._span("push", lease.queue, lease.id, lease.name, lease.meta, start)
        if span is None:
            return lease
        span.set_attribute("jobq.attempt", lease.attempt)
        span.end()
        return replace(lease, meta=self._within(lease.meta, span))

    def _span(
        self,
        operation: str,
        queue: QueueName,
        id: str,
        name: str,
        meta: Mapping[str, str] | None,
        start: int,
    ) -> Span | None:
        """A span in the trace of the job's producer. None if it has none, or is not recorded."""
        if not meta:
            return None
        parent = _extracted(meta, self._propagator)
        if not trace.get_current_span(parent).get_span_context().is_valid:
            return None
        span = self._tracer.start_span(
            f"{operation} {queue.queue}",
            context=parent,
            kind=SpanKind.SERVER,
            attributes={
                "messaging.system": "jobq",
                "messaging.operation.name": operation,
                "messaging.destination.name": queue.queue,
                "messaging.message.id": id,
                "jobq.tenant": queue.tenant,
                "jobq.task": name,
            },
            start_time=start,
        )
        return span if span.is_recording() else None

    def _within(self, meta: Mapping[str, str] | None, span: Span) -> dict[str, str]:
        return _carried(meta or {}, trace.set_span_in_context(span, Context()), self._propagator)


async def _inputs(job: CurrentJob) -> list[Mapping[str, str]]:
    """The meta of the jobs that this one waited for."""
    run = job._run
    keys = [each.job for each in run.lease.inputs[:_MAX_LINKS]]
    if not keys:
        return []
    try:
        return [record.meta or {} for record in await run.store.get(keys) if record is not None]
    except JobqError:  # a trace without links is better than a run that fails
        return []


def _record(span: Span, job: CurrentJob, failure: Failure, error: BaseException | None) -> None:
    """Record the exception of a failed run."""
    of_job = {"messaging.message.id": job.id}
    if isinstance(error, Exception) and not isinstance(error, FailedApart):
        span.record_exception(error, of_job)
        return
    described = {  # it timed out, or the error is in another process
        "exception.type": failure.type,
        "exception.message": failure.message,
        "exception.stacktrace": failure.traceback or "",
    }
    span.add_event("exception", {**of_job, **described})


def _attributes(of: EnqueueRequest | CurrentJob, name: str, type: str) -> dict[str, str]:
    return {
        "messaging.system": "jobq",
        "messaging.operation.name": name,
        "messaging.operation.type": type,
        "messaging.destination.name": of.queue,
        "jobq.tenant": of.tenant,
        "jobq.task": of.name,
    }


def _message(job: CurrentJob) -> dict[str, str | int]:
    if job.batch:
        return {"messaging.batch.message_count": len(job.batch)}
    return {"messaging.message.id": job.id, "jobq.attempt": job.attempt}


def _type_name(error: BaseException) -> str:
    kind = type(error)
    return (
        kind.__qualname__
        if kind.__module__ == "builtins"
        else public_name(f"{kind.__module__}.{kind.__qualname__}")
    )
