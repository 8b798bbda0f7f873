"""Rows of the jobs table, and what is seldom set, packed into one column.

`Job` is the row, loaded whole, changed in Python and saved whole: the way of everything but the three hot paths
(put, claim, complete), which have statements of their own.
"""

from __future__ import annotations

import msgspec

from jobq.core import meta
from jobq.core.call_options import NO_OPTIONS, CallOptions
from jobq.core.event_log import STATES
from jobq.core.records import (
    ChildPolicy,
    Failure,
    JobRecord,
    JobSpec,
    QueueName,
    RetryData,
    UniqueMode,
    UniqueSpec,
)
from jobq.core.unknown import PutOff, starts
from jobq.core.verdicts import unreadable

# State codes as in core.event_log.STATES, for SQL and speed.
DELAYED, BLOCKED, WAITING, ACTIVE, COMPLETED, FAILED, CANCELLED = range(7)
ENDED = (COMPLETED, FAILED, CANCELLED)

# Flags of a job. Without any of ENDING, and without a key, the end of a job touches nothing but its own row.
GIVEN = 1  # the caller chose the id
CANCEL = 2  # asked to cancel while active
WATCHED = 4  # somebody is to be told when it ends
WANTED = 8  # other jobs wait for it
LOCKING = 16  # it may hold a unique lock
TTL = 32  # it has an explicit result_ttl
SCHEDULED = 64  # a schedule waits for its end
NOTED = 128  # it has log lines, signals or edges to remove with it
ERRED = 256  # it has failed runs on record, to be removed with it
ENDING = CANCEL | WATCHED | WANTED | LOCKING | TTL | SCHEDULED

FOREVER = 2**53
"""The `at_ms` of what never ends by itself but must be found by state."""


class Options(msgspec.Struct, array_like=True, omit_defaults=True, kw_only=True):
    """What is seldom set. A job with all defaults stores NULL."""

    lifo: bool = False
    delay_ms: int = 0
    at_ms: int | None = None
    ttl_ms: int | None = None
    result_ttl_ms: int | None = None
    retry: RetryData | None = None
    timeout_ms: int | None = None
    max_stalls: int | None = None
    cost: int = 1
    lock: str | None = None
    lock_mode: UniqueMode | None = None
    lock_ttl_ms: int | None = None
    policy: ChildPolicy = "fail"
    schedule: str | None = None
    origin: str | None = None
    signal: str | None = None  # the signal it waits for
    seen: int = 0  # how many of that name it has had
    actor: str | None = None  # who asked it to stop while it was active
    meta: dict[str, str] | None = None
    put_off: PutOff | None = None  # workers that claimed it did not know its task


DEFAULT = Options()
BROKEN = Options()
"""In the place of options that cannot be read."""
_encode = msgspec.msgpack.Encoder().encode
_decode_options = msgspec.msgpack.Decoder(Options).decode
_decode_failure = msgspec.msgpack.Decoder(Failure).decode


def options_of(spec: JobSpec) -> Options:
    """The packed part of a spec."""
    unique = spec.unique
    return Options(
        lifo=spec.lifo,
        delay_ms=spec.delay_ms,
        at_ms=spec.at_ms,
        ttl_ms=spec.ttl_ms,
        result_ttl_ms=spec.result_ttl_ms,
        retry=spec.retry,
        timeout_ms=spec.timeout_ms,
        max_stalls=spec.max_stalls,
        cost=spec.cost,
        lock=unique.lock if unique else None,
        lock_mode=unique.mode if unique else None,
        lock_ttl_ms=unique.ttl_ms if unique else None,
        policy=spec.on_child_failure,
        schedule=spec.schedule,
        origin=spec.origin,
        meta=spec.meta,
    )


def stored_options(options: Options) -> CallOptions:
    """The other way, for readers."""
    if options is DEFAULT:
        return NO_OPTIONS
    unique = (
        None
        if options.lock is None
        else UniqueSpec(
            lock=options.lock, mode=options.lock_mode or "simple", ttl_ms=options.lock_ttl_ms
        )
    )
    return CallOptions(
        lifo=options.lifo,
        delay_ms=options.delay_ms,
        at_ms=options.at_ms,
        ttl_ms=options.ttl_ms,
        result_ttl_ms=options.result_ttl_ms,
        retry=options.retry,
        timeout_ms=options.timeout_ms,
        max_stalls=options.max_stalls,
        cost=options.cost,
        unique=unique,
        on_child_failure=options.policy,
    )


def pack_options(options: Options) -> bytes | None:
    """Packed; None when everything is at its default."""
    return None if options == DEFAULT else _encode(options)


def unpack_options(data: bytes | None) -> Options:
    """The other way. BROKEN for what cannot be read: such a job is claimed as unreadable, and ends like any other."""
    if data is None:
        return DEFAULT
    try:
        return _decode_options(data)
    except (msgspec.MsgspecError, TypeError):  # not ours, or not even bytes
        return BROKEN


def told_meta(packed: bytes | None, names: tuple[str, ...]) -> dict[str, str] | None:
    """What events tell of a job with these packed options, in a queue that allows these names."""
    return None if packed is None else meta.event_meta(unpack_options(packed).meta, names)


def pack_failure(failure: Failure) -> bytes:
    """For the failure column."""
    return _encode(failure)


def unpack_failure(data: bytes | None) -> Failure | None:
    """The other way."""
    if data is None:
        return None
    try:
        return _decode_failure(data)
    except (msgspec.MsgspecError, TypeError):
        return unreadable(attempt=0, worker=None, now_ms=0)


class Job(msgspec.Struct):
    """A row of jobs; the fields are its columns, in their order. Only `actor` is not stored."""

    pk: int
    qid: int
    id: str
    state: int
    priority: int
    seq: int
    at_ms: int | None
    keep: int
    key: str | None
    flags: int
    name: str
    life: int
    attempt: int
    failures: int
    stalls: int
    created_ms: int
    due_ms: int | None
    started_ms: int | None
    finished_ms: int | None
    worker: str | None
    token: str | None
    follows: int
    codec: str
    options: bytes | None
    failure: bytes | None
    reason: str | None
    saved: bytes | None
    progress: bytes | None
    payload: bytes
    result: bytes | None
    actor: str | None = None  # who gave the command under way: it goes into the events that result

    @property
    def starts(self) -> int:
        """How many of its attempts began a run."""
        return (
            self.attempt
            if self.options is None
            else starts(self.attempt, unpack_options(self.options).put_off)
        )

    def values(self) -> tuple[object, ...]:
        """As parameters of `save_job`: everything behind the key, then the key."""
        values = msgspec.structs.astuple(self)
        return (*values[1:-1], values[0])


def record(job: Job, queue: QueueName) -> JobRecord:
    """As readers see it; parents and children are added by whoever asks for them."""
    options = unpack_options(job.options)
    return JobRecord(
        queue=queue,
        id=job.id,
        name=job.name,
        state=STATES[job.state],
        payload=job.payload,
        codec=job.codec,
        priority=job.priority,
        key=job.key,
        life=job.life,
        attempt=job.attempt,
        failures=job.failures,
        stalls=job.stalls,
        created_ms=job.created_ms,
        due_ms=job.due_ms,
        started_ms=job.started_ms,
        finished_ms=job.finished_ms,
        worker=job.worker,
        result=job.result,
        failure=unpack_failure(job.failure),
        reason=job.reason,
        progress=job.progress,
        saved=job.saved,
        cancel_asked=bool(job.flags & CANCEL),
        schedule=options.schedule,
        origin=options.origin,
        meta=options.meta,
        options=stored_options(options),
    )
