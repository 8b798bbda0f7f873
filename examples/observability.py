"""Observability: logs, Prometheus, OpenTelemetry and Sentry see jobs as middleware."""

import asyncio
import logging
import sys

import sentry_sdk
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry

from jobq import CallNext, CurrentJob, Queue, Worker, ending_of, logs, prometheus
from jobq.otel import Telemetry
from jobq.prometheus import Metrics
from jobq.sentry import Sentry

# What an application does anyway: logging, a tracer, Sentry.
logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(task)s: %(message)s")
logging.getLogger("jobq").setLevel(logging.CRITICAL)
logs.install(outside="-")
spans = InMemorySpanExporter()  # an application exports to a collector
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(spans))
trace.set_tracer_provider(provider)
sentry_sdk.init()  # with its DSN

registry = CollectorRegistry()  # an application uses the default one
metrics, telemetry, reporting = Metrics(registry), Telemetry(), Sentry()

mail = Queue(
    "mail",
    "memory://",
    middleware=[telemetry.run, reporting.run, metrics.run],
    enqueue_middleware=[telemetry.enqueue, reporting.enqueue, metrics.enqueue],
)


@mail.task(retry=0)
async def send(to: str) -> None:
    logging.getLogger("app").info("sending to %s", to)
    if "@" not in to:
        raise ValueError(f"{to} is not an address")


async def alarm(job: CurrentJob, call_next: CallNext) -> object:
    """A middleware of your own: tell somebody about failures that are final."""
    try:
        return await call_next(job)
    except Exception as error:
        ending = ending_of(job, error)
        if ending.outcome == "failed":
            print(f"{job.name} failed for good: {error}")
        raise


async def main() -> None:
    async with mail, Worker(mail, middleware=[alarm]):
        for to in ("ada@example.com", "nobody"):
            job = await send.enqueue(to)
            await job.wait(timeout=10)
        text = await prometheus.render(mail, registry=registry)

    for line in text.decode().splitlines():
        if line.startswith(("jobq_runs_total", "jobq_queue_jobs")) and not line.endswith(" 0.0"):
            print(line)
    for span in spans.get_finished_spans():
        print(span.name, (span.attributes or {}).get("jobq.outcome", ""))


if __name__ == "__main__":
    asyncio.run(main())
