"""Frozen snapshots of jobs, events, queues and workers, made from the store's records."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, Literal, Protocol

import msgspec

from jobq.core.policies import Retry
from jobq.core.policies.retry import stored_retry
from jobq.core.records import events, jobs, queues
from jobq.core.records.events import EventRecord
from jobq.core.records.jobs import ChildPolicy, Failure, JobRecord, Mode, UniqueMode, UniqueSpec
from jobq.core.records.states import Kind, QueueKind, State
from jobq.core.records.workers import WorkerRecord
from jobq.core.rules.deferral import sentence
from jobq.core.rules.options import APPLIED, Option
from jobq.core.rules.waits import readable
from jobq.core.values.codec import get_codec
from jobq.core.values.units import moment, moment_or_none

__all__ = [
    "AppliedOptions",
    "Event",
    "Failure",
    "JobInfo",
    "JobRef",
    "MinuteMetrics",
    "QueueStats",
    "State",
    "StepInfo",
    "Undecoded",
    "UniqueLock",
    "WorkerInfo",
]

# The options that apply to a job: those of its call, else those of its task.

ByWorker = Literal["worker"]
"""Stands for an option that the task decides, where this process does not have the task."""


class TaskPolicy(Protocol):
    """What a task decides for its jobs, unless the call gives its own option."""

    @property
    def retry(self) -> Retry:
        """When a failed job is retried."""
        ...

    @property
    def timeout_ms(self) -> int | None:
        """How long a run may take; None: no limit."""
        ...

    @property
    def max_stalls(self) -> int:
        """How often a job may lose its worker before it fails."""
        ...


class UniqueLock(msgspec.Struct, frozen=True, kw_only=True):
    """The unique lock of a job. `lock` is a digest of the task and the arguments: jobs with the
    same digest count as the same job. `period`: how long the lock holds at most."""

    lock: str
    mode: UniqueMode
    period: timedelta | None


class AppliedOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options that apply to a job.

    "worker" means that the task decides, and this process does not have the task.
    """

    # begin scripts/options.py: applied_options
    priority: int
    """Higher runs first, from 0 to 2,097,151. Default: 0."""
    lifo: bool
    """Put the job before the others of its priority instead of after them."""
    delay: timedelta | None
    """Start the job after this time."""
    at: datetime | None
    """Start the job at this time."""
    ttl: timedelta | None
    """Fail the job as expired if it has not started within this time after it was due."""
    result_ttl: timedelta | None
    """How long to keep the job's record after it ends. Default: the queue's retention."""
    retry: ByWorker | Retry
    """Retries after failed runs. Default: as declared by the task."""
    timeout: ByWorker | timedelta | None
    """Time limit of one run. Default: as declared by the task."""
    max_stalls: ByWorker | int
    """How often the job may lose its worker before it fails. Default: as declared by the task."""
    key: str | None
    """Key of the job, in a keyed queue."""
    cost: int
    """How much of the queue's rate the job takes. Default: 1."""
    unique: UniqueLock | None
    """Add the job only if no other has the same arguments."""
    on_child_failure: ChildPolicy
    """What a failed child does to the job: fail, ignore or continue. Default: fail."""
    # end scripts/options.py


def applied(record: JobRecord, task: TaskPolicy | None = None) -> AppliedOptions:
    """The options that apply to a job. `task`: the policy of its task, if this process has it."""
    return AppliedOptions(
        **{option.name: _applied(option, option.of(record), task) for option in APPLIED}
    )


def _applied(option: Option, value: Any, task: TaskPolicy | None) -> Any:
    if value is None and option.by_worker:
        if task is None:
            return "worker"
        value = getattr(task, option.field)
    match option.kind:
        case "span":
            return _span(value or None)  # 0 is no delay, and no timeout
        case "moment":
            return moment_or_none(value)
        case "retry":
            return value if isinstance(value, Retry) else stored_retry(value)
        case "unique":
            return None if value is None else _lock(value)
        case _:
            return value


def _lock(unique: UniqueSpec) -> UniqueLock:
    return UniqueLock(lock=unique.lock, mode=unique.mode, period=_span(unique.ttl_ms))


def _span(ms: int | None) -> timedelta | None:
    return None if ms is None else timedelta(milliseconds=ms)


Decode = Callable[[str, bytes], Any]
"""(codec name, data) → value. Raises if the data cannot be decoded."""


class JobRef(msgspec.Struct, frozen=True, kw_only=True):
    """The queue and id of a job of the same tenant."""

    queue: str
    id: str


class Undecoded(msgspec.Struct, frozen=True, kw_only=True):
    """Stands for a value that cannot be decoded, for example because its codec is not known
    here."""

    codec: str
    data: bytes


class StepInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a step of a job has recorded (`current_job().step`)."""

    name: str
    result: Any
    attempt: int  # the run that executed it
    at: datetime


class JobInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A job as it was when it was read."""

    tenant: str
    queue: str
    id: str
    name: str
    state: State
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    result: Any
    failure: Failure | None  # of the last failed run, also during retries, or why the job failed
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
    cancel_asked: bool = False  # it runs, and has been asked to stop
    schedule: str | None = None  # id of the schedule that made the job
    origin: str | None = None  # of a dead-letter copy: "queue/id" of the failed job
    meta: Mapping[str, str] = {}  # from task.options(meta=…)
    options: AppliedOptions  # of the call, else of the task
    # The last ten failed runs, oldest first, kept across reruns. Listings (`find`) leave it empty.
    errors: tuple[Failure, ...] = ()
    # The steps that the job has recorded, oldest first. Listings leave it empty.
    steps: tuple[StepInfo, ...] = ()
    saved: Any = None  # what the job has saved last, with save or Snooze(saved=…)
    # Why it waits for another worker, in one sentence: no worker that claimed it has its task, or
    # its arguments do not fit their version of the task. None: its last run was not deferred.
    deferred: str | None = None


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One transition of a job, or one operation on a queue. The events of a job are in order.

    `position` resumes reading: `events(after=event.position)`. `number` counts the events of the
    queue (of each `shard` of a partitioned queue) from 1 without gaps. If two events have the same
    number and different ids, the store has lost its last writes. Events written by jobq 0.1 have
    number 0. `actor` is the name that the command was given under.

    Events of operations on the queue (`paused`, `limits`, `cleared`, …) have no job and no state;
    `reason` says what was done. Neither has `kind="gap"`: events before it were dropped from the
    log.
    """

    # from core/records/events.py by scripts/event_schemas.py
    id: str
    """Never used for another event. Drop an event whose id you have seen."""
    number: int
    """Number in the shard of the queue's log, from 1 without gaps. Absent or 0: jobq 0.1."""
    shard: int
    """Partition of a partitioned queue, otherwise 0."""
    position: str
    """Continues reading after the event."""
    kind: Kind | QueueKind | Literal["gap"]
    """What happened. Ignore kinds that you do not know."""
    at: datetime
    """When it happened, by the store's clock."""
    tenant: str
    """The tenant."""
    queue: str
    """The queue."""
    job: str
    """The job's id. Empty for an operation on a queue, a gap and a mark."""
    life: int
    """How often the job was started over."""
    name: str
    """The task."""
    key: str | None
    """The concurrency key."""
    attempt: int
    """Runs started so far."""
    failures: int
    """Runs of this life that failed."""
    stalls: int
    """Runs of this life whose lease was lost."""
    state: State | None
    """The job's state after the event. Absent without a job."""
    previous: State | None
    """The job's state before the event. Absent for accepted, and without a job."""
    worker: str | None
    """The worker that made the call; for stalled, the one that noticed."""
    actor: str | None
    """Who gave the command."""
    reason: str | None
    """Why the job failed or was cancelled, or what was done to the queue."""
    error: str | None
    """Type and message of the error."""
    fingerprint: str | None
    """Equal for errors with the same cause."""
    created_at: datetime
    """When the job was accepted."""
    due_at: datetime | None
    """When the job was or is due."""
    started_at: datetime | None
    """When the latest run started."""
    finished_at: datetime | None
    """When the job ended."""
    meta: Mapping[str, str] = {}
    """The names of the job's meta that Queue(event_meta=…) allows."""


class QueueStats(msgspec.Struct, frozen=True, kw_only=True):
    """The counts and settings of a queue."""

    tenant: str
    queue: str
    counts: Mapping[State, int]
    paused: bool
    mode: Mode | None
    oldest_waiting: timedelta | None  # how long the next job to start has waited
    next_due: timedelta | None  # until the next delayed job is due
    workers: int
    held_until: datetime | None = None  # no job starts before this time, see `Queue.hold`


class MinuteMetrics(msgspec.Struct, frozen=True, kw_only=True):
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


class WorkerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A worker, as its last heartbeat described it."""

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
    """Decode a value without converting it to an annotation."""
    return get_codec(codec).decode(data)


def job_info(
    record: jobs.JobRecord, decode_result: Decode | None = None, task: TaskPolicy | None = None
) -> JobInfo:
    """The snapshot of a record. A value that cannot be decoded appears as `Undecoded`, so one bad
    job does not fail a listing.

    `task`: the policy of the job's task, if this process has it."""
    args, kwargs = call_of(record.codec, record.payload, record.name)
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
        steps=_steps(record),
        saved=_value(record.codec, record.saved, plain),
        meta=record.meta or {},
        options=applied(record, task),
        deferred=sentence(record),
    )


def _steps(record: jobs.JobRecord) -> tuple[StepInfo, ...]:
    return tuple(
        StepInfo(
            name=name,
            result=_value(record.codec, step.result, plain),
            attempt=step.attempt,
            at=moment(step.at_ms),
        )
        for name, step in readable(record.steps)
    )


def call_of(codec: str, payload: bytes, task: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments in the payload of a job of this task."""
    try:
        args, kwargs = get_codec(codec).for_task(task).decode_call(payload)
    except Exception:  # not a call, or its codec is not known; a custom codec may raise anything
        return (_value(codec, payload, plain),), {}
    return tuple(args), kwargs


def _value(codec: str, data: bytes | None, decode: Decode) -> Any:
    if data is None:
        return None
    try:
        return decode(codec, data)
    except Exception:  # a custom codec may raise anything
        return Undecoded(codec=codec, data=data)


def event(record: EventRecord, position: str) -> Event:
    """An event for users. `position` is where reading continues after it."""
    fields: dict[str, Any] = {
        field.shown: moment_or_none(value) if field.word == "time" else value
        for field, value in zip(events.FIELDS, events.values(record), strict=True)
    }
    return Event(**{**fields, "position": position, "meta": record.meta or {}})


def queue_stats(record: queues.StatsRecord) -> QueueStats:
    """The QueueStats of a record."""
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
    """The counts of all states, with 0 for those without jobs."""
    return {state: counts.get(state, 0) for state in State}


def minute_metrics(record: queues.MinuteRecord) -> MinuteMetrics:
    """The MinuteMetrics of a record."""
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
    """The WorkerInfo of a record."""
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
