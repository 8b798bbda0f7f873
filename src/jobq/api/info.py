"""What users see: snapshots with datetimes, made from the records of the store. Frozen; reading a field costs nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from jobq.api.applied import AppliedOptions, TaskPolicy, applied
from jobq.core import queues, records
from jobq.core.codec import get_codec
from jobq.core.deprecated import renamed_attribute
from jobq.core.event_records import EventRecord
from jobq.core.moments import moment, moment_or_none
from jobq.core.records import Failure, Mode
from jobq.core.states import Kind, QueueKind, State
from jobq.core.workers import WorkerRecord

__all__ = [
    "Event",
    "Failure",
    "JobInfo",
    "JobRef",
    "MinuteMetrics",
    "QueueStats",
    "State",
    "Undecoded",
    "WorkerInfo",
]

Decode = Callable[[str, bytes], Any]
"""(codec name, data) → value; raises when it cannot."""


class JobRef(msgspec.Struct, frozen=True, kw_only=True):
    """Names a job of the same tenant."""

    queue: str
    id: str


class Undecoded(msgspec.Struct, frozen=True, kw_only=True):
    """Stands for a value whose codec is not known here, or that it cannot read."""

    codec: str
    data: bytes


class JobInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A job as it was when asked."""

    tenant: str
    queue: str
    id: str
    name: str
    state: State
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    result: Any
    failure: (
        Failure | None
    )  # the last failed run of this life, also while it is being retried, or what ended the job
    priority: int
    key: str | None
    attempt: int
    failures: int
    stalls: int
    created_at: datetime
    due_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    worker: str | None
    progress: Any
    life: int
    parents: tuple[JobRef, ...]
    children: tuple[JobRef, ...]
    reason: str | None = None  # of a cancelled job: cancelled, removed, replaced, …
    cancel_asked: bool = False
    schedule: str | None = None  # the schedule that made it
    origin: str | None = None  # dead letters: "queue/id" of the job this is a copy of
    meta: Mapping[str, str] = {}  # the strings that travel with it
    options: AppliedOptions  # as they apply: given with the call, else by its task
    errors: tuple[
        Failure, ...
    ] = ()  # the last ten failed runs, oldest first, kept across reruns; empty in listings (`find`)


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One transition, self-contained, in order per job. `position` is opaque and resumes `events(after=…)`.

    `number` counts the events of the queue (of each `shard` of a partitioned one) from 1 without gaps; two ids under one number
    mean that the store lost its last writes. Events that jobq 0.1 wrote have the number 0. `actor` is whoever gave the command.
    `kind="gap"` has no job and no state: what came before it had been dropped from the log. Events of something that was
    done to the queue (`paused`, `limits`, `cleared`, …) have no job and no state either; `reason` says what was done.
    """

    id: str
    number: int
    shard: int
    position: str
    kind: Kind | QueueKind | Literal["gap"]
    at: datetime
    tenant: str
    queue: str
    job: str
    life: int
    name: str
    key: str | None
    attempt: int
    failures: int
    stalls: int
    state: State | None
    previous: State | None
    worker: str | None
    actor: str | None
    reason: str | None
    error: str | None
    fingerprint: str | None
    created_at: datetime
    due_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    meta: Mapping[str, str] = {}  # the names that `Queue(event_meta=…)` allows


class QueueStats(msgspec.Struct, frozen=True, kw_only=True):
    """A queue at a glance."""

    tenant: str
    queue: str
    counts: Mapping[State, int]
    paused: bool
    mode: Mode | None
    oldest_waiting: timedelta | None  # how long the next job in line has been waiting
    next_due: timedelta | None  # until the next delayed job is due
    workers: int
    held_until: datetime | None = (
        None  # nothing starts before: a hold of the queue, see `Queue.hold`
    )


class MinuteMetrics(msgspec.Struct, frozen=True, kw_only=True, rename={"latency": "wait"}):
    """What happened in one minute of one queue. All fields are sums, so minutes can be added."""

    minute: datetime
    accepted: int
    started: int
    completed: int
    failed: int
    cancelled: int
    retried: int
    stalled: int
    latency: timedelta  # of the jobs that started: from due to started, summed
    run: timedelta  # of the runs that ended: from started to ended, summed

    if not TYPE_CHECKING:
        wait = renamed_attribute("wait", "latency")


class WorkerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A worker as it last said it was."""

    name: str
    host: str
    pid: int
    queues: tuple[str, ...]
    concurrency: int
    active: int
    paused: bool
    draining: bool
    started_at: datetime
    seen_at: datetime


# ── from the store's records ──────────────────────────────────────────────────────────────────────


def plain(codec: str, data: bytes) -> Any:
    """A value as its codec has it, without annotations."""
    return get_codec(codec).decode(data)


def job_info(
    record: records.JobRecord, decode_result: Decode | None = None, task: TaskPolicy | None = None
) -> JobInfo:
    """The snapshot of a record. What cannot be decoded appears as `Undecoded`: a listing never fails for one job.

    `task`: what its task decides for it, if this process has the task."""
    args, kwargs = call_of(record.codec, record.payload)
    return JobInfo(
        tenant=record.queue.tenant,
        queue=record.queue.queue,
        id=record.id,
        name=record.name,
        state=record.state,
        args=args,
        kwargs=kwargs,
        result=_value(record.codec, record.result, decode_result or plain),
        failure=record.failure,
        priority=record.priority,
        key=record.key,
        attempt=record.attempt,
        failures=record.failures,
        stalls=record.stalls,
        created_at=moment(record.created_ms),
        due_at=moment_or_none(record.due_ms),
        started_at=moment_or_none(record.started_ms),
        finished_at=moment_or_none(record.finished_ms),
        worker=record.worker,
        progress=_value(record.codec, record.progress, plain),
        life=record.life,
        parents=tuple(JobRef(queue=key.queue.queue, id=key.id) for key in record.parents),
        children=tuple(JobRef(queue=key.queue.queue, id=key.id) for key in record.children),
        reason=record.reason,
        cancel_asked=record.cancel_asked,
        schedule=record.schedule,
        origin=record.origin,
        errors=record.errors,
        meta=record.meta or {},
        options=applied(record, task),
    )


def call_of(codec: str, payload: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments in a payload."""
    value = _value(codec, payload, plain)
    match value:
        case [[*args], dict(kwargs)]:
            return tuple(args), kwargs
        case _:
            return (value,), {}


def _value(codec: str, data: bytes | None, decode: Decode) -> Any:
    if data is None:
        return None
    try:
        return decode(codec, data)
    except Exception:  # a custom codec may raise anything, and one bad job must not spoil a listing
        return Undecoded(codec=codec, data=data)


def event(record: EventRecord, position: str) -> Event:
    """An event of the log, for users. `position` continues right behind it."""
    return Event(
        id=record.id,
        number=record.number,
        shard=record.shard,
        position=position,
        kind=record.kind,
        at=moment(record.at_ms),
        tenant=record.queue.tenant,
        queue=record.queue.queue,
        job=record.job,
        life=record.life,
        name=record.name,
        key=record.key,
        attempt=record.attempt,
        failures=record.failures,
        stalls=record.stalls,
        state=record.state,
        previous=record.previous,
        worker=record.worker,
        actor=record.actor,
        reason=record.reason,
        error=record.error,
        fingerprint=record.fingerprint,
        created_at=moment(record.created_ms),
        due_at=moment_or_none(record.due_ms),
        started_at=moment_or_none(record.started_ms),
        finished_at=moment_or_none(record.finished_ms),
        meta=record.meta or {},
    )


def queue_stats(record: queues.StatsRecord) -> QueueStats:
    """A queue's record, for users."""
    return QueueStats(
        tenant=record.queue.tenant,
        queue=record.queue.queue,
        counts=all_counts(record.counts),
        paused=record.paused,
        mode=record.mode,
        oldest_waiting=_span(record.oldest_waiting_ms),
        next_due=_span(record.next_due_ms),
        workers=record.workers,
        held_until=moment_or_none(record.held_until_ms),
    )


def all_counts(counts: Mapping[State, int]) -> dict[State, int]:
    """Every state, also those in which no job stands."""
    return {state: counts.get(state, 0) for state in State}


def _span(ms: int | None) -> timedelta | None:
    return None if ms is None else timedelta(milliseconds=ms)


def minute_metrics(record: queues.MinuteRecord) -> MinuteMetrics:
    """A minute, for users."""
    return MinuteMetrics(
        minute=moment(record.minute_ms),
        accepted=record.accepted,
        started=record.started,
        completed=record.completed,
        failed=record.failed,
        cancelled=record.cancelled,
        retried=record.retried,
        stalled=record.stalled,
        latency=timedelta(milliseconds=record.wait_ms),
        run=timedelta(milliseconds=record.run_ms),
    )


def worker_info(record: WorkerRecord) -> WorkerInfo:
    """A worker, for users."""
    return WorkerInfo(
        name=record.name,
        host=record.host,
        pid=record.pid,
        queues=tuple(queue.queue for queue in record.queues),
        concurrency=record.concurrency,
        active=record.active,
        paused=record.paused,
        draining=record.draining,
        started_at=moment(record.started_ms),
        seen_at=moment(record.seen_ms),
    )
