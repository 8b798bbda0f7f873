"""A trace goes from the producer through the server into the handler, in the real SDK."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from jobq import Queue, Retry, Worker
from jobq.core.records.jobs import Edge, JobKey, JobSpec, QueueName
from jobq.errors import JobqError
from jobq.otel import Telemetry, with_server_spans
from jobq.rpc.v1 import common_pb2 as common
from jobq.rpc.v1 import jobs_pb2 as pb
from jobq.rpc.v1.jobs_pb2_grpc import JobServiceStub
from jobq.server.config import load
from jobq.server.host import Host
from jobq.server.plan import plan
from jobq.server.run import serving
from jobq.stores import open_store
from jobq.testing import FakeWorker
from tests.server.serving import PATIENCE_S

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Spans:
    """What the exporter has got, by the name of a span."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def named(self, name: str) -> list[ReadableSpan]:
        found = (span for span in self._exporter.get_finished_spans() if span.name == name)
        return sorted(found, key=lambda span: span.start_time or 0)

    def one(self, name: str) -> ReadableSpan:
        (found,) = self.named(name)
        return found


def is_child(span: ReadableSpan, of: ReadableSpan) -> bool:
    context = of.get_span_context()
    assert context is not None
    return span.parent is not None and (span.parent.trace_id, span.parent.span_id) == (
        context.trace_id,
        context.span_id,
    )


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Spans:
    """The tracer of this process, as `opentelemetry-instrument` sets it."""
    found = Spans()
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", found.provider)
    return found


@pytest.fixture
async def server(spans: Spans, tmp_path: Path) -> AsyncIterator[Host]:
    environment = {
        "JQ_URL": f"sqlite:///{tmp_path}/jobs.db",
        "JQ_GRPC_PORT": "0",
        "JQ_METRICS_PORT": "0",
        "JQ_HEALTH_PORT": "0",
    }
    async with serving(plan(load(None, environment), environment)) as host:
        yield host


async def test_producer_submit_push_and_handler_are_one_line_of_spans(
    server: Host, spans: Spans
) -> None:
    telemetry = Telemetry(tracer_provider=spans.provider)
    url = f"grpc://127.0.0.1:{server.port}"
    async with Queue(
        "mail", url, middleware=[telemetry.run], enqueue_middleware=[telemetry.enqueue]
    ) as mail:
        tries = 0

        @mail.task(retry=Retry(max_retries=1, delays=[0]))
        async def send(to: str) -> None:
            nonlocal tries
            tries += 1
            if tries == 1:
                raise ValueError("try again")

        async with Worker(mail):
            job = await send.enqueue("ann")
            await job.result(timeout=PATIENCE_S)
    submit = spans.one("submit mail")
    assert is_child(submit, of=spans.one("enqueue mail"))
    pushes, runs = spans.named("push mail"), spans.named("process mail")
    assert len(pushes) == len(runs) == 2, "each attempt has a push and a run"
    for attempt, (push, run) in enumerate(zip(pushes, runs, strict=True), 1):
        assert is_child(push, of=submit)
        assert is_child(run, of=push)
        assert push.attributes is not None
        assert push.attributes["jobq.attempt"] == attempt
    assert submit.kind is pushes[0].kind is SpanKind.SERVER
    assert submit.attributes is not None
    assert submit.attributes["messaging.message.id"] == job.id


async def test_a_client_and_a_worker_of_another_language_are_traced(
    server: Host, spans: Spans
) -> None:
    address = f"127.0.0.1:{server.port}"
    new = common.NewJob(queue="mail", name="send", id="1")

    def submit_it() -> None:
        with grpc.insecure_channel(address) as channel:
            JobServiceStub(channel).Submit(
                pb.SubmitRequest(job=new), metadata=(("traceparent", PARENT),), timeout=PATIENCE_S
            )

    async with FakeWorker(address, ["mail"]) as worker:
        await asyncio.to_thread(submit_it)
        job = await worker.job()
        await worker.complete(job)
    submit, push = spans.one("submit mail"), spans.one("push mail")
    assert submit.parent is not None
    assert f"{submit.parent.span_id:016x}" == PARENT.split("-")[2]
    assert is_child(push, of=submit)
    context = push.get_span_context()
    assert context is not None
    assert job.meta["traceparent"] == f"00-{context.trace_id:032x}-{context.span_id:016x}-01"


async def test_a_job_without_a_trace_gets_no_span_and_keeps_its_meta(
    server: Host, spans: Spans
) -> None:
    queue = QueueName("default", "mail")
    async with open_store(f"grpc://127.0.0.1:{server.port}") as store:
        for n, meta in enumerate((None, {"user": "ann"}, {"traceparent": "x"})):
            spec = JobSpec(queue=queue, id=str(n), name="n", payload=b"[[],{}]", meta=meta)
            await store.put([spec])
        assert spans.named("submit mail") == []
        parent = {"traceparent": PARENT.removesuffix("1") + "0"}  # the producer did not sample it
        spec = JobSpec(queue=queue, id="unsampled", name="n", payload=b"[[],{}]", meta=parent)
        await store.put([spec])
        assert spans.named("submit mail") == []


async def test_a_refused_submit_is_an_error_and_a_duplicate_says_so(spans: Spans) -> None:
    queue = QueueName("default", "mail")
    good = JobSpec(queue=queue, id="1", name="n", payload=b"[]", meta={"traceparent": PARENT})
    async with open_store("memory://spans") as inner:
        store = with_server_spans(inner)
        assert store is not inner
        await store.put([good])
        await store.put([good])
        edge = Edge(job=JobKey(queue, "nowhere"))
        bad = JobSpec(queue=queue, id="2", name="n", payload=b"[]", meta=good.meta, after=(edge,))
        with pytest.raises(JobqError):
            await store.put([bad])
    first, second, refused = spans.named("submit mail")
    assert first.attributes is not None
    assert "jobq.duplicate" not in first.attributes
    assert second.attributes is not None
    assert second.attributes["jobq.duplicate"] is True
    assert refused.status.status_code is StatusCode.ERROR


async def test_without_a_tracer_the_store_is_as_it_was() -> None:
    async with open_store("memory://no-spans") as store:
        assert with_server_spans(store) is store
