"""The records of jobs that cross the Store contract, and the options that stores keep with them.

They are frozen and keyword-only, with times in milliseconds. What users wrote is bytes. The public
API turns these records into what users see (`JobInfo`, `Event`, …); a store turns them into rows,
keys or messages.
"""

from __future__ import annotations

from datetime import UTC, datetime
from operator import attrgetter
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from jobq.core.records.states import State
from jobq.core.values.error_names import public_name

# The options of one call, as stores keep them. Part of the Store contract.

ChildPolicy = Literal["fail", "ignore", "continue"]
UniqueMode = Literal["simple", "throttle", "debounce", "keep_last"]


class RetryData(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """A retry policy as data, to be stored with a job.

    The n-th retry (1 is the first) waits min(base·factor^(n-1), cap), or delays_ms[n-1], of which
    the last one repeats. `jitter` is a fraction of the delay, added or subtracted: 0 unless
    it is given, also by callers in other languages. `Retry` gives 0.1.
    """

    max_retries: int = 3
    base_ms: int = 1000
    factor: float = 2.0
    cap_ms: int = 3_600_000
    jitter: float = 0.0
    delays_ms: Annotated[tuple[int, ...], msgspec.Meta(max_length=100_000)] | None = None


class UniqueSpec(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """The unique lock of a job.

    `lock` is a digest of what makes two jobs of a queue the same. `ttl_ms` is how long the lock is
    held at most.
    """

    lock: str
    mode: UniqueMode = "simple"
    ttl_ms: int | None = None


class CallOptions(msgspec.Struct, frozen=True, gc=False):
    """The options that a call gave for its job, for readers. Give them by name.

    The fields mean the same as in `JobSpec`. Priority, key and meta are fields of the
    record itself.
    """

    # begin scripts/options.py: call_options
    lifo: bool = False
    delay_ms: int = 0
    at_ms: int | None = None
    ttl_ms: int | None = None
    result_ttl_ms: int | None = None
    retry: RetryData | None = None
    timeout_ms: int | None = None
    max_stalls: int | None = None
    cost: int = 1
    unique: UniqueSpec | None = None
    on_child_failure: ChildPolicy = "fail"
    # end scripts/options.py


NO_OPTIONS = CallOptions()
"""The options of a job whose call gave none. Shared, so that reading such a job costs nothing."""
_values = attrgetter(*CallOptions.__struct_fields__)


def call_options(stored: Any) -> CallOptions:
    """The options of a job, of whatever stores them under the same names."""
    return CallOptions(*_values(stored))


Reason = Literal[
    "error", "timeout", "stalled", "expired", "rejected", "child", "crashed", "unknown", "unfit"
]
DeferReason = Literal["unknown", "unfit"]
"""Why a worker defers a job: it has no such task, or the arguments do not fit its task."""
Mode = Literal["plain", "keyed"]


class QueueName(NamedTuple):
    """The full name of a queue."""

    tenant: str
    queue: str


class JobKey(NamedTuple):
    """The full name of a job."""

    queue: QueueName
    id: str


# ── what a producer passes in ─────────────────────────────────────────────────────────────────────


class Edge(NamedTuple):
    """The job waits for `job`. With `data`, the lease delivers the result of that job."""

    job: JobKey
    data: bool = True


MAX_AFTER = 100_000
"""Jobs that one job may wait for. More are refused where a record is decoded, before they take
memory."""
Edges = Annotated[tuple[Edge, ...], msgspec.Meta(max_length=MAX_AFTER)]


class JobSpec(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """A new job, checked and encoded."""

    queue: QueueName
    id: str
    name: str
    payload: bytes
    codec: str = "json"
    given_id: bool = False  # the caller chose the id, so trimming by count never removes it
    priority: int = 0
    lifo: bool = False  # to the front of its priority
    delay_ms: int = 0  # from now, or from when the job is unblocked
    at_ms: int | None = None  # instead of delay_ms
    ttl_ms: int | None = None  # from due to the first start; after that the job fails as `expired`
    result_ttl_ms: int | None = None  # None: the queue's retention
    retry: RetryData | None = None  # None: the worker's task decides
    timeout_ms: int | None = None  # None: the worker's task decides; 0: none
    max_stalls: int | None = None  # None: the worker's task decides (core/rules/outcomes.py)
    key: str | None = None
    cost: int = 1
    unique: UniqueSpec | None = None
    after: Edges = ()
    on_child_failure: ChildPolicy = "fail"
    # The place of a former field. Stored schedules contain specs as arrays.
    reserved: bool = False
    schedule: str | None = None  # the schedule that made it
    origin: str | None = None  # dead letters: "queue/id" of the job this is a copy of
    meta: Annotated[dict[str, str], msgspec.Meta(max_length=4096)] | None = None  # values/meta.py


class PutResult(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What happened to one spec.

    A duplicate names the job that was found. Its id may differ from the spec's, if that job holds
    the unique lock.
    """

    id: str
    life: int
    state: State | None  # None: refused
    duplicate: bool = False
    found: JobRecord | None = None  # the job that a duplicate found, as it is now
    full: int | None = None  # refused: the queue has reached this max_waiting


# ── what a worker receives and returns ────────────────────────────────────────────────────────────


class Failure(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Why an attempt, or the job, failed."""

    reason: Reason
    type: str
    message: str
    traceback: str | None = None
    attempt: int = 0
    at_ms: int = 0
    fingerprint: str | None = None  # groups failures of one cause
    worker: str | None = None  # who ran the attempt; None if no run failed (expired, child)
    exhausted: bool = False  # the job failed because no retries or stalls were left

    def __post_init__(self) -> None:
        if self.type.startswith("jobq."):  # an old record, or an old worker
            msgspec.structs.force_setattr(self, "type", public_name(self.type))

    @property
    def at(self) -> datetime:
        """`at_ms` as a datetime."""
        return datetime.fromtimestamp(self.at_ms / 1000, UTC)


class Input(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """How a job ended that this one waited for.

    `result` is None if there is nothing to deliver. With the policy `continue`, `failure` says why
    the job failed. `job` is as the edge named it, even if a unique lock put another job in its
    place.
    """

    job: JobKey
    result: bytes | None = None
    codec: str = "json"
    failure: Failure | None = None


class Lease(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One claimed job: the right to run it until `expires_ms`. The token proves it."""

    queue: QueueName
    id: str
    token: str
    life: int
    name: str
    payload: bytes
    codec: str
    attempt: int
    failures: int
    stalls: int
    created_ms: int
    started_ms: int
    expires_ms: int
    key: str | None = None
    retry: RetryData | None = None
    timeout_ms: int | None = None
    saved: bytes | None = None  # what Snooze(saved=…), a wait or a checkpoint saved
    cancel_asked: bool = False
    # The job was deferred: since when no worker has known its task (core/rules/deferral.py)
    unknown_ms: int | None = None
    # The job has stalled before, and its next stall fails it. Such a lease is alone in its reply.
    last_chance: bool = False
    inputs: tuple[Input, ...] = ()
    # All signals received, oldest first. An empty value means that the wait timed out.
    signals: tuple[tuple[str, bytes], ...] = ()
    steps: Steps = ()  # what the job's steps have recorded in this life, ordered by name
    meta: dict[str, str] | None = None
    unreadable: bool = False  # the stored job cannot be read: fail it, do not run it
    due_ms: int = 0  # since when it could start; 0: not known
    default_retries: int | None = None  # the queue's, if neither call nor task has a policy
    unfit_ms: int | None = None  # since when its arguments have fitted no worker that had its task


class LeaseRef(NamedTuple):
    """Names a lease: enough to renew it or to write notes under it."""

    queue: QueueName
    id: str
    token: str


Steps = tuple[tuple[str, bytes], ...]
"""What steps of a job have recorded: names and bytes (core/rules/waits.py)."""


class Checkpoint(NamedTuple):
    """What a run has saved, and which of its checkpoints this is, from 1."""

    data: bytes
    number: int


LeaseState = Literal["held", "lost", "cancel"]  # cancel: held, and the job was asked to stop


class Outcome(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How a run ended. The subclasses are the complete list."""

    queue: QueueName
    id: str
    token: str


class Complete(Outcome, frozen=True, kw_only=True, tag="complete"):
    """The run succeeded."""

    result: bytes | None = None


class RetryLater(Outcome, frozen=True, kw_only=True, tag="retry"):
    """The run failed, and the job runs again after `delay_ms`. failures+1."""

    failure: Failure
    delay_ms: int = 0


class Fail(Outcome, frozen=True, kw_only=True, tag="fail"):
    """The job failed for good. failures+1."""

    failure: Failure


class SnoozeFor(Outcome, frozen=True, kw_only=True, tag="snooze"):
    """The job asked to run again later, with what it saved. Does not count as a failure.

    If `saved_number` is not 0, `saved` is that checkpoint of the run (see `Note`), and a newer one
    stays. With such a number and without `saved`, what the job has saved stays.
    """

    delay_ms: int = 0
    saved: bytes | None = None
    saved_number: int = 0


class Release(Outcome, frozen=True, kw_only=True, tag="release"):
    """The worker released the job unfinished.

    It returns to the front. Does not count as a failure.
    """


class Hold(Outcome, frozen=True, kw_only=True, tag="hold"):
    """The job met a rate limit: its key (or its queue, if it has no key) is held for `delay_ms`.

    The job returns to the front. Does not count as a failure.
    """

    delay_ms: int


class Defer(Outcome, frozen=True, kw_only=True, tag="defer"):
    """The worker cannot run the job, but another one may: the job waits for `delay_ms`.

    It does not know the task, or the arguments do not fit it: then `text` says why. Does not count
    as a failure. A job that has only been deferred counts as not yet started. In a keyed queue the
    job keeps its place and its key is held instead (core/rules/deferral.py).
    """

    delay_ms: int
    reason: DeferReason = "unknown"
    text: str = ""


class Block(Outcome, frozen=True, kw_only=True, tag="block"):
    """The job is blocked: it waits for the jobs of `after`, or for a signal.

    The jobs of `after` are stored already. Waiting does not count as a failure. If nothing is
    missing, the job is waiting again at once. After `timeout_ms` it continues with an empty value
    as its signal. Signals stay with the job, so that a later run finds those of earlier waits:
    `seen` is how many of that name this run has received. If `saved` is None, what the job saved
    before is kept.
    """

    after: Edges = ()
    signal: str | None = None
    seen: int = 0
    timeout_ms: int | None = None
    saved: bytes | None = None


AnyOutcome = Complete | RetryLater | Fail | SnoozeFor | Release | Hold | Defer | Block


def lane_of(call: str) -> int:
    """The lane of an exchange called `name` (lane 0) or `name/lane`."""
    _, slash, lane = call.rpartition("/")
    return int(lane) if slash and lane.isdecimal() else 0


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker asks for: up to `limit` jobs that it can start now.

    The store looks into `queues` in this order. `alone` means that the worker runs nothing else and
    has no other claim in flight. Only such a claim gets a job on its last chance.
    """

    queues: tuple[QueueName, ...]
    limit: int
    lease_ms: int
    alone: bool = True


class Settled(msgspec.Struct, frozen=True, kw_only=True):
    """The reply to an exchange. Every outcome that is not in `stale` was applied.

    `last_chance` means that the next job of a queue is on its last chance and could start now, but
    this claim was not alone or has other leases. The worker should soon claim it alone, because
    nothing behind it in that queue is claimed before it.
    """

    stale: tuple[LeaseRef, ...] = ()
    leases: tuple[Lease, ...] = ()
    next_due_ms: int | None = None  # from now until a job of these queues may become claimable
    last_chance: bool = False
    asleep: bool = False  # there was nothing to claim, and new work wakes the worker (see `sleep`)


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """What a running job reports: progress, log lines, a checkpoint and steps. None leaves what is
    stored.

    `saved` replaces what the job has saved. If this run does not end, the next one finds it in
    `Lease.saved`. `saved_number` counts the checkpoints of the lease from 1: one with a lower
    number than the last of the same lease was held up on its way, and is ignored. 0 is for callers
    that do not count, and replaces any. Each of `steps` is a name and bytes, stored apart from all
    others; the next run finds all steps in `Lease.steps`.
    """

    lease: LeaseRef
    progress: bytes | None = None
    lines: tuple[str, ...] = ()
    saved: bytes | None = None
    steps: Steps = ()
    saved_number: int = 0

    @property
    def durable(self) -> bool:
        """Whether a later run depends on it. Progress and log lines are only read by people."""
        return self.saved is not None or bool(self.steps)


# ── what readers see ──────────────────────────────────────────────────────────────────────────────


class Deferred(msgspec.Struct, frozen=True, array_like=True):
    """How a job was last deferred in this life (core/rules/deferral.py)."""

    reason: DeferReason
    text: str = ""  # what does not fit
    attempt: int = 0  # the attempt that was deferred: if it is the last one, the job still is
    unfit_ms: int = 0  # since when its arguments fit no worker that has the task; 0: not known


class JobRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A job as the store holds it now."""

    queue: QueueName
    id: str
    name: str
    state: State
    payload: bytes
    codec: str = "json"
    priority: int = 0
    key: str | None = None
    life: int = 0
    attempt: int = 0
    failures: int = 0
    stalls: int = 0
    created_ms: int = 0
    due_ms: int | None = None
    started_ms: int | None = None
    finished_ms: int | None = None
    worker: str | None = None
    result: bytes | None = None
    failure: Failure | None = None  # of this life: the last failed run, or why the job failed
    # The last failed runs (core.records.failures.MAX_ERRORS) of all lives, oldest first. Only
    # `get` has them.
    errors: tuple[Failure, ...] = ()
    reason: str | None = None  # why a job was cancelled: cancelled, removed, replaced, …
    progress: bytes | None = None
    saved: bytes | None = None
    cancel_asked: bool = False
    schedule: str | None = None
    origin: str | None = None
    parents: tuple[JobKey, ...] = ()
    children: tuple[JobKey, ...] = ()
    meta: dict[str, str] | None = None
    options: CallOptions = NO_OPTIONS
    given_id: bool = False  # the caller chose the id
    # What the job's steps have recorded in this life, ordered by name. Only `get` has them.
    steps: Steps = ()
    # Set if workers have deferred it in this life, even if one has run it since.
    deferred: Deferred | None = None


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """Which jobs of a queue to list, and in which order within a state."""

    queue: QueueName
    state: State | None = None
    name: str | None = None
    key: str | None = None
    oldest_first: bool = False


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """Part of a listing. `cursor` continues it; None means there is no more.

    A page may be empty and still have a cursor.
    """

    records: tuple[JobRecord, ...]
    cursor: str | None = None


class Topic(NamedTuple):
    """What to listen for.

    `ended`: the job `name` of the queue ended. `noted`: its run stored progress or log lines.
    `cancel`: a job of the worker `name` was asked to stop. `log`: events were written to the
    queue's log.
    """

    kind: Literal["ended", "noted", "cancel", "log"]
    queue: QueueName | None
    name: str | None


class Signal(NamedTuple):
    """A notification about a topic.

    `job` is the one that was asked to stop (`cancel`), that ended (`ended`), or whose run stored
    something (`noted`).
    """

    kind: Literal["ended", "noted", "cancel", "log"]
    queue: QueueName
    job: str | None


class LockRecord(NamedTuple):
    """A unique lock that is held.

    `job` is the id of its holder, whose record may be gone (throttle). `until_ms` is when the lock
    ends at the latest; None: when its job ends. `follow_up` is the id of the job that is blocked
    until the holder ends (keep_last).
    """

    job: str
    until_ms: int | None = None
    follow_up: str | None = None
