"""Jobs and events between protobuf messages and core records.

Here and in `convert_queues` is all code that knows both. What comes from the network is checked by
`core.rules.new_jobs` and `core.values.checks`, so a message can contain anything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from google.protobuf.message import Message

from jobq.core.records import events
from jobq.core.records.events import EventRecord
from jobq.core.records.jobs import (
    Edge,
    Failure,
    JobKey,
    JobRecord,
    JobSpec,
    PutResult,
    QueueName,
    RetryData,
    UniqueSpec,
)
from jobq.core.rules.deferral import sentence
from jobq.core.rules.new_jobs import check_spec
from jobq.core.rules.options import check_retry
from jobq.core.values import checks
from jobq.rpc.v1 import common_pb2 as common
from jobq.rpc.v1 import jobs_pb2 as pb

NO_ARGUMENTS = {"json": b"[[],{}]", "msgpack": b"\x92\x90\x80"}
"""The payload of a call without arguments, by codec."""

_EVENT = tuple(field.name for field in events.FIELDS)


# ── what clients send ─────────────────────────────────────────────────────────────────────────────


def job_spec(
    new: common.NewJob, tenant: str, make_id: Callable[[], str], *, max_payload: int
) -> JobSpec:
    """The spec of a new job, checked. `make_id` makes its id if the message has none."""
    queue = QueueName(tenant, new.queue)
    fields = _given(new, _NEW_JOB)
    if "after" in fields:
        fields["after"] = tuple(_edge(edge, queue) for edge in new.after)
    fields |= {
        "queue": queue,
        "name": new.name,
        "id": new.id or make_id(),
        "given_id": bool(new.id),
    }
    fields.setdefault("payload", NO_ARGUMENTS.get(new.codec or "json", b""))
    spec = check_spec(JobSpec(**fields))
    checks.check_payload(spec.payload, max_payload, f"the arguments of {spec.name} take")
    return spec


def retry_data(retry: common.Retry) -> RetryData:
    """A retry policy, checked."""
    return check_retry(_retry(retry))


def _retry(retry: common.Retry) -> RetryData:
    return RetryData(**{"max_retries": 0, **_given(retry, _RETRY)})


def _unique(unique: common.Unique) -> UniqueSpec:
    return UniqueSpec(**{"lock": "", **_given(unique, _UNIQUE)})


def _given(message: Any, fields: Sequence[_Field]) -> dict[str, Any]:
    """The fields that a message sets, as a spec has them. 0 and "" mean the default, unless the
    field is `optional`."""
    has, found = message.HasField, {}
    for name, presence, read in fields:
        if has(name) if presence else getattr(message, name):
            value = getattr(message, name)
            found[name] = value if read is None else read(value)
    return found


_Field = tuple[str, bool, Callable[[Any], Any] | None]
_READ: dict[str, Callable[[Any], Any]] = {
    "retry": _retry,
    "unique": _unique,
    "meta": dict,
    "delays_ms": tuple,
}
"""Fields of messages that have another type in a spec."""


def _fields(kind: type[Message]) -> list[_Field]:
    # Not message.ListFields(): reading the names of its descriptors takes twice as long.
    return [(each.name, each.has_presence, _READ.get(each.name)) for each in kind.DESCRIPTOR.fields]


_NEW_JOB, _RETRY, _UNIQUE = map(_fields, (common.NewJob, common.Retry, common.Unique))


def _edge(edge: common.Edge, queue: QueueName) -> Edge:
    there = QueueName(queue.tenant, edge.queue) if edge.queue else queue
    return Edge(JobKey(there, edge.id), edge.result)


def job_key(queue: QueueName, id: str) -> JobKey:
    """The name of a job, checked."""
    return JobKey(queue, checks.check_id(id))


# ── what clients receive ──────────────────────────────────────────────────────────────────────────


def submitted(result: PutResult) -> pb.SubmitResponse:
    """What became of a submitted job."""
    return pb.SubmitResponse(
        id=result.id,
        life=result.life,
        state=result.state or "",
        duplicate=result.duplicate,
        found=None if result.found is None else job(result.found),
    )


def job(record: JobRecord) -> common.Job:
    """A job as it is now."""
    return common.Job(
        tenant=record.queue.tenant,
        queue=record.queue.queue,
        id=record.id,
        name=record.name,
        state=record.state,
        payload=record.payload,
        codec=record.codec,
        priority=record.priority,
        key=record.key or "",
        life=record.life,
        attempt=record.attempt,
        failures=record.failures,
        stalls=record.stalls,
        created_ms=record.created_ms,
        due_ms=record.due_ms,
        started_ms=record.started_ms,
        finished_ms=record.finished_ms,
        worker=text(record.worker),
        result=record.result or b"",
        failure=None if record.failure is None else failure(record.failure),
        errors=[failure(each) for each in record.errors],
        reason=text(record.reason),
        progress=record.progress or b"",
        cancel_asked=record.cancel_asked,
        schedule=record.schedule or "",
        origin=record.origin or "",
        parents=_refs(record.parents),
        children=_refs(record.children),
        meta=record.meta or {},
        deferred=text(sentence(record)),
    )


def failure(failed: Failure) -> common.Failure:
    """Why a run, or the job, failed."""
    return common.Failure(
        reason=failed.reason,
        type=text(failed.type),
        message=text(failed.message),
        traceback=text(failed.traceback),
        attempt=failed.attempt,
        at_ms=failed.at_ms,
        fingerprint=failed.fingerprint or "",
        worker=text(failed.worker),
        exhausted=failed.exhausted,
    )


def _refs(jobs: Sequence[JobKey]) -> list[common.JobRef]:
    return [common.JobRef(queue=each.queue.queue, id=each.id) for each in jobs]


def event(record: EventRecord) -> pb.Event:
    """An event of a log."""
    fields: dict[str, Any] = {
        name: text(value) if isinstance(value, str) else value
        for name, value in zip(_EVENT, events.values(record), strict=True)
        if value is not None
    }
    return pb.Event(**fields)


def text(value: str | None) -> str:
    """A text that a program wrote. A lone surrogate, which protobuf refuses, becomes "?"."""
    if not value:
        return ""
    return value if value.isascii() else value.encode("utf-8", "replace").decode()
