"""The job in every line that its handler logs: for `logging`, and for structlog.

    logging.basicConfig(format="%(levelname)s %(job_id)s %(message)s")
    jobq.logs.install(outside="-")

    structlog.configure(processors=[jobq.logs.add_job, …])

Inside a job, a log record gets the attributes `job_id`, `task`, `queue`, `tenant` and `attempt`,
and `trace_id` if the job was enqueued in a trace or runs in one. They follow the job into threads,
asyncio tasks and child processes. The handler of a batch task has no single job: its records have
`task`, `queue`, `tenant` and `batch`, the number of jobs.

jq-worker installs the filter by itself.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Mapping, MutableMapping
from typing import Any

from jobq.core.records.jobs import Lease
from jobq.engine.child_tasks import in_batch
from jobq.executors.running import running

__all__ = ["FIELDS", "JobFilter", "add_job", "install", "job_fields"]

FIELDS = ("job_id", "task", "queue", "tenant", "attempt", "trace_id")
"""The names of what a log line tells about its job."""

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")


def job_fields() -> dict[str, Any]:
    """What a log line tells about the job that this code runs in. Empty outside of a job."""
    run = running.get(None)
    if run is not None:
        lease = run.lease
        fields = {"job_id": lease.id, **_task_fields(lease), "attempt": lease.attempt}
        trace_id = _active_trace() or _carried_trace(lease.meta)
    else:
        first = in_batch.get(None)
        if first is None:
            return {}
        fields = _task_fields(first.lease)
        if first.batch is not None:
            fields["batch"] = len(first.batch.runs)
        trace_id = _active_trace()
    if trace_id is not None:
        fields["trace_id"] = trace_id
    return fields


class JobFilter(logging.Filter):
    """Adds the fields to each record that its handler gets. It lets every record pass.

    A field that the record has already, from `extra=`, is kept. Outside of jobs, records get no
    fields; with `outside`, they get this text for each, so that a format string may name them.
    """

    def __init__(self, *, outside: str | None = None) -> None:
        super().__init__()
        self._outside = {} if outside is None else dict.fromkeys(FIELDS, outside)

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the fields."""
        have = record.__dict__
        for name, value in (self._outside | job_fields()).items():
            have.setdefault(name, value)
        return True


def install(*handlers: logging.Handler, outside: str | None = None) -> None:
    """Add a JobFilter to these handlers. Default: to those of the root logger and of `jobq`.

    Call it after logging is configured. Calling it again changes nothing.
    """
    found = handlers or (*logging.getLogger().handlers, *logging.getLogger("jobq").handlers)
    for handler in found:
        if not any(isinstance(each, JobFilter) for each in handler.filters):
            handler.addFilter(JobFilter(outside=outside))


def add_job(
    logger: object, method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """A structlog processor that adds the fields to each event. It keeps what the event has."""
    for name, value in job_fields().items():
        event.setdefault(name, value)
    return event


def _task_fields(lease: Lease) -> dict[str, Any]:
    return {"task": lease.name, "queue": lease.queue.queue, "tenant": lease.queue.tenant}


def _active_trace() -> str | None:
    """The trace of OpenTelemetry's current span, if the application uses OpenTelemetry."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return None
    context = trace.get_current_span().get_span_context()
    return f"{context.trace_id:032x}" if context.is_valid else None


def _carried_trace(meta: Mapping[str, str] | None) -> str | None:
    """The trace in which the job was enqueued, by the W3C header that its meta carries."""
    match = _TRACEPARENT.fullmatch((meta or {}).get("traceparent", ""))
    return None if match is None else match[1]
