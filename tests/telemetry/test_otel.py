"""Traces and metrics, in the real SDK with exporters in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.propagators.composite import CompositePropagator
from opentelemetry.propagators.textmap import TextMapPropagator
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from jobq import Every, Queue, Retry, Snooze, Worker, current_job, logs
from jobq.otel import Telemetry, job_context
from tests.telemetry.apps import apart

NOW = Retry(max_retries=1, delays=[0])


class Otel:
    """The SDK with its exporters, and what they got."""

    def __init__(self, propagator: TextMapPropagator | None = None) -> None:
        self._spans = InMemorySpanExporter()
        self._reader = InMemoryMetricReader()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._spans))
        self.tracer: Tracer = provider.get_tracer("app")
        self.telemetry = Telemetry(
            tracer_provider=provider,
            meter_provider=MeterProvider(metric_readers=[self._reader]),
            propagator=propagator,
        )

    def spans(self, kind: SpanKind) -> list[ReadableSpan]:
        return [span for span in self._spans.get_finished_spans() if span.kind is kind]

    @property
    def produced(self) -> list[ReadableSpan]:
        return self.spans(SpanKind.PRODUCER)

    @property
    def consumed(self) -> list[ReadableSpan]:
        return self.spans(SpanKind.CONSUMER)

    def points(self, name: str) -> list[Any]:
        data = self._reader.get_metrics_data()
        assert data is not None
        return [
            point
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        ]


def context_of(span: ReadableSpan) -> tuple[int, int]:
    context = span.get_span_context()
    assert context is not None
    return context.trace_id, context.span_id


def parent_of(span: ReadableSpan) -> tuple[int, int] | None:
    return None if span.parent is None else (span.parent.trace_id, span.parent.span_id)


def links_of(span: ReadableSpan) -> list[tuple[int, int]]:
    return [(link.context.trace_id, link.context.span_id) for link in span.links]


@pytest.fixture
def otel() -> Otel:
    return Otel()


@pytest.fixture
async def queue(url: str, otel: Otel) -> AsyncIterator[Queue]:
    async with Queue(
        "mail",
        url,
        middleware=[otel.telemetry.run],
        enqueue_middleware=[otel.telemetry.enqueue],
    ) as queue:
        yield queue


async def test_a_run_is_in_the_trace_in_which_its_job_was_enqueued(
    queue: Queue, otel: Otel
) -> None:
    @queue.task
    async def send() -> str:
        with otel.tracer.start_as_current_span("smtp"):
            return logs.job_fields()["trace_id"]  # type: ignore[no-any-return]

    with otel.tracer.start_as_current_span("request") as request:
        job = await send.enqueue()
    async with Worker(queue):
        logged = await job.result(timeout=10)
    (produced,), (consumed,) = otel.produced, otel.consumed
    assert parent_of(produced) == context_of(request)  # type: ignore[arg-type]
    assert parent_of(consumed) == context_of(produced)
    (inner,) = [span for span in otel.spans(SpanKind.INTERNAL) if span.name == "smtp"]
    assert parent_of(inner) == context_of(consumed)
    assert logged == f"{context_of(request)[0]:032x}"  # type: ignore[arg-type]


@pytest.mark.parametrize("baggage_first", [False, True])
async def test_a_job_without_a_trace_is_not_in_the_trace_that_started_the_worker(
    url: str, baggage_first: bool
) -> None:
    """The propagator of baggage begins with the current context, unless it is given another."""
    both = [TraceContextTextMapPropagator(), W3CBaggagePropagator()]
    otel = Otel(CompositePropagator(both[::-1] if baggage_first else both))
    async with Queue("mail", url, middleware=[otel.telemetry.run]) as queue:

        @queue.task
        async def send() -> None: ...

        with otel.tracer.start_as_current_span("start"):
            async with Worker(queue):
                await (await send.enqueue()).result(timeout=10)
    (consumed,) = otel.consumed
    assert consumed.parent is None


async def test_spans_follow_the_messaging_conventions(queue: Queue, otel: Otel) -> None:
    @queue.task
    async def send() -> None: ...

    async with Worker(queue):
        job = await send.enqueue()
        await job.result(timeout=10)
    (produced,), (consumed,) = otel.produced, otel.consumed
    same = {
        "messaging.system": "jobq",
        "messaging.destination.name": "mail",
        "messaging.message.id": job.id,
        "jobq.task": "send",
        "jobq.tenant": "default",
    }
    assert produced.name == "enqueue mail"
    assert dict(produced.attributes or {}) == {
        **same,
        "messaging.operation.name": "enqueue",
        "messaging.operation.type": "send",
    }
    assert consumed.name == "process mail"
    assert dict(consumed.attributes or {}) == {
        **same,
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "jobq.attempt": 1,
        "jobq.outcome": "completed",
    }
    assert consumed.status.status_code is StatusCode.UNSET


async def test_a_plain_function_runs_inside_its_span(queue: Queue, otel: Otel) -> None:
    @queue.task
    def send() -> int:
        return trace.get_current_span().get_span_context().span_id

    async with Worker(queue):
        found = await (await send.enqueue()).result(timeout=10)
    (consumed,) = otel.consumed
    assert found == context_of(consumed)[1]


async def test_each_attempt_is_a_span_of_the_same_trace(queue: Queue, otel: Otel) -> None:
    @queue.task(retry=NOW)
    async def send() -> None:
        raise ValueError("no such address")

    async with Worker(queue):
        await (await send.enqueue()).wait(timeout=10)
    (produced,) = otel.produced
    first, second = otel.consumed
    assert parent_of(first) == parent_of(second) == context_of(produced)
    for n, (span, outcome) in enumerate([(first, "retried"), (second, "failed")], 1):
        attributes = dict(span.attributes or {})
        assert attributes["jobq.attempt"] == n
        assert attributes["jobq.outcome"] == outcome
        assert attributes["error.type"] == "ValueError"
        assert span.status.status_code is StatusCode.ERROR
        assert span.status.description == "no such address"
        assert [event.name for event in span.events] == ["exception"]


async def test_a_snooze_is_no_error(queue: Queue, otel: Otel) -> None:
    @queue.task
    async def send() -> None:
        if current_job().attempt == 1:
            raise Snooze(0)

    async with Worker(queue):
        await (await send.enqueue()).result(timeout=10)
    first, _ = otel.consumed
    assert dict(first.attributes or {})["jobq.outcome"] == "snoozed"
    assert first.status.status_code is StatusCode.UNSET
    assert first.events == ()


async def test_a_batch_has_a_trace_of_its_own_with_a_link_to_each_job(
    queue: Queue, otel: Otel
) -> None:
    @queue.batch_task(size=2, retry=0)
    async def send(items: list[int]) -> list[Any]:
        return [ValueError("no") if n else None for n in items]

    sent = [await send.enqueue(n) for n in range(2)]
    async with Worker(queue):
        for job in sent:
            await job.wait(timeout=10)
    (consumed,) = otel.consumed
    assert consumed.parent is None
    assert sorted(links_of(consumed)) == sorted(map(context_of, otel.produced))
    attributes = dict(consumed.attributes or {})
    assert attributes["messaging.batch.message_count"] == 2
    assert attributes["jobq.outcome"] == "mixed"
    (event,) = consumed.events
    assert dict(event.attributes or {})["messaging.message.id"] == sent[1].id


async def test_a_job_that_waited_for_others_has_a_link_to_each(queue: Queue, otel: Otel) -> None:
    @queue.task
    async def part(n: int) -> int:
        return n

    @queue.task
    async def whole(parts: Sequence[int]) -> int:
        return sum(parts)

    parts = [await part.enqueue(n) for n in range(2)]
    job = await whole.options(after=parts).enqueue([1, 2])
    async with Worker(queue):
        await job.result(timeout=10)
    span = next(s for s in otel.consumed if (s.attributes or {})["jobq.task"] == "whole")
    of_parts = [s for s in otel.produced if (s.attributes or {})["jobq.task"] == "part"]
    assert sorted(links_of(span)) == sorted(map(context_of, of_parts))


async def test_a_child_is_in_the_trace_of_its_parent(queue: Queue, otel: Otel) -> None:
    @queue.task
    async def child() -> None: ...

    @queue.task
    async def parent() -> None:
        await current_job().add(child)
        await current_job().wait_for_children()

    async with Worker(queue):
        await (await parent.enqueue()).result(timeout=10)
    assert len({context_of(span)[0] for span in (*otel.produced, *otel.consumed)}) == 1
    of_child = next(s for s in otel.produced if (s.attributes or {})["jobq.task"] == "child")
    runs = [s for s in otel.consumed if (s.attributes or {})["jobq.task"] == "parent"]
    assert parent_of(of_child) == context_of(runs[0])
    assert [(s.attributes or {})["jobq.outcome"] for s in runs] == ["blocked", "completed"]


async def test_a_schedule_carries_no_trace(queue: Queue, otel: Otel) -> None:
    @queue.task
    async def send() -> None: ...

    with otel.tracer.start_as_current_span("deploy"):
        await queue.schedule("hourly", Every(3600), send)
        job = await queue.run_schedule("hourly")
    assert (await job.info()).meta.get("traceparent") is None
    assert otel.produced == []


async def test_the_blocking_api_carries_the_trace_of_the_calling_thread(
    url: str, otel: Otel
) -> None:
    queue = Queue("mail", url, enqueue_middleware=[otel.telemetry.enqueue])

    @queue.task
    def send() -> None: ...

    def call() -> tuple[int, str]:
        with otel.tracer.start_as_current_span("request") as span, queue.sync:
            job = send.sync.enqueue()
            return span.get_span_context().span_id, job.info().meta["traceparent"]

    request, carried = await asyncio.to_thread(call)
    (produced,) = otel.produced
    assert produced.parent is not None
    assert produced.parent.span_id == request
    assert carried.split("-")[2] == f"{context_of(produced)[1]:016x}"


async def test_a_full_meta_costs_the_trace_and_not_the_job(queue: Queue, otel: Otel) -> None:
    @queue.task
    async def send() -> dict[str, str]:
        return dict(current_job().meta)

    full = {"x": "y" * 4090}
    async with Worker(queue):
        assert await (await send.options(meta=full).enqueue()).result(timeout=10) == full


async def test_the_context_of_a_job_is_at_hand_where_no_span_is(queue: Queue, otel: Otel) -> None:
    @queue.task
    async def send() -> int:
        return trace.get_current_span(job_context()).get_span_context().span_id

    async with Worker(queue):
        found = await (await send.enqueue()).result(timeout=10)
    (produced,) = otel.produced
    assert found == context_of(produced)[1]


async def test_jobs_and_runs_are_measured(queue: Queue, otel: Otel) -> None:
    @queue.task(retry=0)
    async def send(fails: bool) -> None:
        if fails:
            raise ValueError("no")

    async with Worker(queue):
        for fails in (False, False, True):
            await (await send.enqueue(fails)).wait(timeout=10)
    (sent,) = otel.points("messaging.client.sent.messages")
    assert sent.value == 3
    consumed = {
        point.attributes["jobq.outcome"]: (point.value, point.attributes.get("error.type"))
        for point in otel.points("messaging.client.consumed.messages")
    }
    assert consumed == {"completed": (2, None), "failed": (1, "ValueError")}
    durations = otel.points("messaging.process.duration")
    assert sum(point.count for point in durations) == 3


async def test_an_enqueue_that_is_refused_is_an_error_of_its_span(url: str, otel: Otel) -> None:
    async def refuse(request: Any, call_next: Any) -> Any:
        raise PermissionError("not today")

    async with Queue("mail", url, enqueue_middleware=[otel.telemetry.enqueue, refuse]) as queue:

        @queue.task
        async def send() -> None: ...

        with pytest.raises(PermissionError):
            await send.enqueue()
    (produced,) = otel.produced
    assert produced.status.status_code is StatusCode.ERROR
    assert dict(produced.attributes or {})["error.type"] == "PermissionError"


async def test_a_worker_and_a_queue_that_both_trace_make_one_span(queue: Queue, otel: Otel) -> None:
    @queue.task
    async def send() -> None: ...

    async with Worker(queue, middleware=[otel.telemetry.run]):
        await (await send.enqueue()).result(timeout=10)
    assert len(otel.consumed) == 1


async def test_a_failure_in_a_child_process_is_an_exception_of_its_span(
    url: str, otel: Otel
) -> None:
    apart.failing._context.connection.move(url)
    try:
        async with apart.failing, Worker(apart.failing, pool=1, middleware=[otel.telemetry.run]):
            await (await apart.fail_apart.enqueue()).wait(timeout=30)
    finally:
        await apart.failing._context.connection.move_back()
    (consumed,) = otel.consumed
    (event,) = consumed.events
    attributes = dict(event.attributes or {})
    assert attributes["exception.type"] == "ValueError"
    assert "in fail_apart" in str(attributes["exception.stacktrace"])
