"""Jobs and events between protobuf messages and core records.

Here and in `convert_queues` is all code that knows both. What comes from the network is checked by
`core.new_jobs` and `core.checks`, so a message can contain anything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from jobq.core import checks, event_records
from jobq.core.call_options import ChildPolicy, RetryData, UniqueMode, UniqueSpec
from jobq.core.event_records import EventRecord
from jobq.core.new_jobs import check_retry, check_spec
from jobq.core.records import Edge, Failure, JobKey, JobRecord, JobSpec, PutResult, QueueName
from jobq.core.unknown import sentence
from jobq.rpc.v1 import common_pb2 as common
from jobq.rpc.v1 import jobs_pb2 as pb

NO_ARGUMENTS = {"json": b"[[],{}]", "msgpack": b"\x92\x90\x80"}
"""The payload of a call without arguments, by codec."""

_DEFAULT_RETRY = RetryData()
_EVENT = tuple(field.name for field in event_records.FIELDS)


# ── what clients send ─────────────────────────────────────────────────────────────────────────────


def job_spec(
    new: common.NewJob, tenant: str, make_id: Callable[[], str], *, max_payload: int
) -> JobSpec:
    """The spec of a new job, checked. `make_id` makes its id if the message has none."""
    queue = QueueName(tenant, new.queue)
    codec = new.codec or "json"
    spec = check_spec(
        JobSpec(
            queue=queue,
            id=new.id or make_id(),
            name=new.name,
            payload=new.payload or NO_ARGUMENTS.get(codec, b""),
            codec=codec,
            given_id=bool(new.id),
            priority=new.priority,
            lifo=new.lifo,
            delay_ms=new.delay_ms,
            at_ms=new.at_ms if new.HasField("at_ms") else None,
            ttl_ms=new.ttl_ms if new.HasField("ttl_ms") else None,
            result_ttl_ms=new.result_ttl_ms if new.HasField("result_ttl_ms") else None,
            retry=_retry(new.retry) if new.HasField("retry") else None,
            timeout_ms=new.timeout_ms if new.HasField("timeout_ms") else None,
            max_stalls=new.max_stalls if new.HasField("max_stalls") else None,
            key=new.key or None,
            cost=new.cost or 1,
            unique=_unique(new.unique) if new.HasField("unique") else None,
            after=tuple(_edge(edge, queue) for edge in new.after) if new.after else (),
            on_child_failure=cast(ChildPolicy, new.on_child_failure or "fail"),
            meta=dict(new.meta) if new.meta else None,
        )
    )
    checks.check_payload(spec.payload, max_payload, f"the arguments of {spec.name} take")
    return spec


def retry_data(retry: common.Retry) -> RetryData:
    """A retry policy, checked."""
    return check_retry(_retry(retry))


def _retry(retry: common.Retry) -> RetryData:
    default = _DEFAULT_RETRY
    return RetryData(
        max_retries=retry.max_retries,
        base_ms=retry.base_ms if retry.HasField("base_ms") else default.base_ms,
        factor=retry.factor if retry.HasField("factor") else default.factor,
        cap_ms=retry.cap_ms if retry.HasField("cap_ms") else default.cap_ms,
        jitter=retry.jitter,
        delays_ms=tuple(retry.delays_ms) or None,
    )


def _unique(unique: common.Unique) -> UniqueSpec:
    return UniqueSpec(
        lock=unique.lock,
        mode=cast(UniqueMode, unique.mode or "simple"),
        ttl_ms=unique.ttl_ms if unique.HasField("ttl_ms") else None,
    )


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
        for name, value in zip(_EVENT, event_records.values(record), strict=True)
        if value is not None
    }
    return pb.Event(**fields)


def text(value: str | None) -> str:
    """A text that a program wrote. A lone surrogate, which protobuf refuses, becomes "?"."""
    if not value:
        return ""
    return value if value.isascii() else value.encode("utf-8", "replace").decode()
