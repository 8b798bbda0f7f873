"""Traces and metrics with OpenTelemetry, by its conventions for messaging. Needs `jobq[otel]`.

    telemetry = jobq.otel.Telemetry()
    mail = Queue("mail", middleware=[telemetry.run], enqueue_middleware=[telemetry.enqueue])

`enqueue` makes a producer span and stores its context in the job's `meta`, as the W3C headers
`traceparent` and `tracestate`. Each run makes a consumer span in the trace in which the job was
enqueued, so a retry, a child or a job of a flow is in that trace too. Spans that the handler makes
are below the consumer span, also in threads.

The span of a batch is the root of a trace of its own, with a link to each job. The span of a job
that waited for others has a link to each of them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

try:
    import opentelemetry.trace  # noqa: F401 - only whether it is there
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "jobq.otel needs the package opentelemetry-api: pip install 'jobq[otel]'", name=error.name
    ) from None

from opentelemetry import metrics, propagate, trace
from opentelemetry.context import Context
from opentelemetry.metrics import MeterProvider
from opentelemetry.propagators.textmap import TextMapPropagator
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, TracerProvider

from jobq.api.current import CurrentJob, current_job
from jobq.api.ending import Ended, OncePerRun, endings_of
from jobq.api.enqueue_middleware import EnqueueNext, EnqueueRequest
from jobq.api.job import Job
from jobq.api.middleware import CallNext
from jobq.api.worker_callbacks import MissedTime
from jobq.core.meta import check_meta
from jobq.core.records import Failure
from jobq.core.version import __version__
from jobq.engine.around import FailedApart
from jobq.errors import InvalidJob, JobqError

__all__ = ["Telemetry", "job_context"]

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
        headers: dict[str, str] = {}
        (self._propagator or propagate.get_global_textmap()).inject(headers)
        for name, value in headers.items():
            try:
                if len(value) <= _MAX_CARRIED and check_meta({**request.meta, name: value}):
                    request.meta[name] = value
            except InvalidJob:  # the meta is full: the job is worth more than its trace
                return

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
        else f"{kind.__module__}.{kind.__qualname__}"
    )
