"""The records that cross the Store seam.

Frozen, keyword-only, integers of milliseconds, bytes for what users wrote. The public API turns
them into what users see (`JobInfo`, `Event`, …); a store turns them into rows, keys or messages.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal, NamedTuple

import msgspec

from jobq.core.call_options import NO_OPTIONS, CallOptions
from jobq.core.call_options import (
    ChildPolicy as ChildPolicy,  # re-exported: a spec is made of these
)
from jobq.core.call_options import RetryData as RetryData
from jobq.core.call_options import UniqueMode as UniqueMode
from jobq.core.call_options import UniqueSpec as UniqueSpec
from jobq.core.states import State

MAX_PRIORITY = 2**21 - 1
MAX_ID_LENGTH = 256

Reason = Literal[
    "error", "timeout", "stalled", "expired", "rejected", "child", "crashed", "unknown"
]
Mode = Literal["plain", "keyed"]


class QueueName(NamedTuple):
    """A queue's whole name."""

    tenant: str
    queue: str


class JobKey(NamedTuple):
    """A job's whole name."""

    queue: QueueName
    id: str


# ── what a producer hands in ──────────────────────────────────────────────────────────────────────


class Edge(NamedTuple):
    """The job waits for `job`. With `data`, its result is delivered in the lease."""

    job: JobKey
    data: bool = True


class JobSpec(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """A job as its producer wants it, checked and encoded."""

    queue: QueueName
    id: str
    name: str
    payload: bytes
    codec: str = "json"
    given_id: bool = False  # the caller chose the id: trimming by count never removes it
    priority: int = 0
    lifo: bool = False  # to the front of its priority
    delay_ms: int = 0  # from the store's now, or from the moment it is unblocked
    at_ms: int | None = None  # instead of delay_ms
    ttl_ms: int | None = None  # from due to the first start; then failed, `expired`
    result_ttl_ms: int | None = None  # None: the queue's retention
    retry: RetryData | None = None  # None: the worker's task decides
    timeout_ms: int | None = None  # None: the worker's task decides; 0: none
    max_stalls: int | None = None  # None: the worker's task decides (core/stalls.py)
    key: str | None = None
    cost: int = 1
    unique: UniqueSpec | None = None
    after: tuple[Edge, ...] = ()
    on_child_failure: ChildPolicy = "fail"
    reserved: bool = (
        False  # holds the place of a former field: stored schedules contain specs as arrays
    )
    schedule: str | None = None  # the schedule that made it
    origin: str | None = None  # dead letters: "queue/id" of the job this is a copy of
    meta: dict[str, str] | None = (
        None  # a few strings that travel with the job (core/meta.py); None: none
    )


class PutResult(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What became of one spec.

    A duplicate names the job that was there (its id may differ: a unique lock's holder).
    """

    id: str
    life: int
    state: State | None  # None: refused
    duplicate: bool = False
    found: JobRecord | None = None  # with duplicate: that job as it is now
    full: int | None = (
        None  # refused, and nothing stored: the queue has reached its max_waiting, which is this number
    )


# ── what a worker gets and gives back ─────────────────────────────────────────────────────────────


class Failure(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Why an attempt, or the job, failed."""

    reason: Reason
    type: str
    message: str
    traceback: str | None = None
    attempt: int = 0
    at_ms: int = 0
    fingerprint: str | None = None  # groups failures of one cause
    worker: str | None = None  # that ran the attempt; None: no run failed (expired, child)
    exhausted: bool = False  # the job failed because its retries or stalls ran out, not because it was not to be retried

    @property
    def at(self) -> datetime:
        """`at_ms`, for people."""
        return datetime.fromtimestamp(self.at_ms / 1000, UTC)


class Input(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """How a job this one waited for ended: `result` (None: nothing to deliver), or `failure` by
    policy `continue`.

    `job` is as the edge named it, also where a unique lock made another job stand for it.
    """

    job: JobKey
    result: bytes | None = None
    codec: str = "json"
    failure: Failure | None = None


class Lease(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One job, claimed: the right to run it until `expires_ms`, proved by `token`."""

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
    saved: bytes | None = None  # what Snooze(saved=…) or a wait kept
    cancel_asked: bool = False
    unknown_ms: int | None = (
        None  # when it was first put off by a worker that does not know its task
    )
    last_chance: bool = False  # it has stalled before and its next stall fails it; such a lease is alone in its reply
    inputs: tuple[Input, ...] = ()
    signals: tuple[
        tuple[str, bytes], ...
    ] = ()  # all signals received, oldest first; an empty value: the wait timed out
    meta: dict[str, str] | None = None
    unreadable: bool = False  # what is stored of the job cannot be read: it must be failed, not run


class LeaseRef(NamedTuple):
    """Which lease: enough to renew it or to write notes under it."""

    queue: QueueName
    id: str
    token: str


LeaseState = Literal["held", "lost", "cancel"]  # cancel: held, and its job was asked to stop


class Outcome(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How a run ended. The subclasses are the whole list."""

    queue: QueueName
    id: str
    token: str


class Complete(Outcome, frozen=True, kw_only=True, tag="complete"):
    """It succeeded."""

    result: bytes | None = None


class RetryLater(Outcome, frozen=True, kw_only=True, tag="retry"):
    """It failed and runs again after `delay_ms`; failures+1."""

    failure: Failure
    delay_ms: int = 0


class Fail(Outcome, frozen=True, kw_only=True, tag="fail"):
    """It failed for good; failures+1."""

    failure: Failure


class SnoozeFor(Outcome, frozen=True, kw_only=True, tag="snooze"):
    """It asked to run again later, with what it saved; at no cost."""

    delay_ms: int = 0
    saved: bytes | None = None


class Release(Outcome, frozen=True, kw_only=True, tag="release"):
    """Handed back unfinished, to the front of its line; at no cost."""


class Hold(Outcome, frozen=True, kw_only=True, tag="hold"):
    """It met a rate limit: its key (or, unkeyed, its queue) is held for `delay_ms`, the job goes to
    the front; at no cost.
    """

    delay_ms: int


class Defer(Outcome, frozen=True, kw_only=True, tag="defer"):
    """The worker does not know its task: it is put off for `delay_ms`, at no cost, and counts as
    not yet started if it never was.

    In a keyed queue the job keeps its place and its key is held for as long (core/unknown.py).
    """

    delay_ms: int


class Block(Outcome, frozen=True, kw_only=True, tag="block"):
    """It waits, `blocked`: for the jobs of `after` (put before), or for a signal. At no cost.

    With everything there already it goes straight back to waiting. Past `timeout_ms` it goes on
    with an empty value as its signal. Signals stay with the job, so that a run finds those of
    earlier waits again: `seen` of that name it has. `saved` None leaves what the job has saved, be
    it by an earlier run or by a note of this one.
    """

    after: tuple[Edge, ...] = ()
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
    """What a worker asks for: up to `limit` jobs it can start now, from `queues` in this order.

    `alone`: the worker runs nothing else and has no other claim under way. Only such a claim is given a job on its last chance.
    """

    queues: tuple[QueueName, ...]
    limit: int
    lease_ms: int
    alone: bool = True


class Settled(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to an exchange. Every outcome not named in `stale` was applied.

    `last_chance`: the next job of one of the queues is on its last chance and could start now, but this claim was not alone,
    or has other leases. The worker should claim it alone soon: nothing behind it in that queue is claimed before it.
    """

    stale: tuple[LeaseRef, ...] = ()
    leases: tuple[Lease, ...] = ()
    next_due_ms: int | None = (
        None  # from now until the next job of these queues may become claimable by itself
    )
    last_chance: bool = False
    asleep: bool = False  # there was nothing to claim, and the store knows: what comes wakes the worker (see `sleep`)


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """What a running job reports: progress, log lines, and a checkpoint.

    None leaves what is stored. `saved` replaces what the job has saved, so that its next run finds
    it in `Lease.saved` if this one does not end.
    """

    lease: LeaseRef
    progress: bytes | None = None
    lines: tuple[str, ...] = ()
    saved: bytes | None = None


# ── what readers see ──────────────────────────────────────────────────────────────────────────────


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
    failure: Failure | None = None  # of this life: the last failed run, or what ended the job
    errors: tuple[
        Failure, ...
    ] = ()  # the last failed runs (core.failures.MAX_ERRORS) of all lives, oldest first; only from `get`
    reason: str | None = None  # of a cancelled job: cancelled, removed, replaced, …
    progress: bytes | None = None
    saved: bytes | None = None
    cancel_asked: bool = False
    schedule: str | None = None
    origin: str | None = None
    parents: tuple[JobKey, ...] = ()
    children: tuple[JobKey, ...] = ()
    meta: dict[str, str] | None = None
    options: CallOptions = NO_OPTIONS


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """Which jobs of a queue."""

    queue: QueueName
    state: State | None = None
    name: str | None = None
    key: str | None = None


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """Part of a listing.

    `cursor` continues it; None: there is no more. A page may be empty and still have a cursor.
    """

    records: tuple[JobRecord, ...]
    cursor: str | None = None


class Topic(NamedTuple):
    """What can be listened for: `ended` (queue, job id) · `cancel` (worker name) · `log` (queue:
    events were written).
    """

    kind: Literal["ended", "cancel", "log"]
    queue: QueueName | None
    name: str | None


class Signal(NamedTuple):
    """A topic that came up.

    For `cancel`, `job` is the one asked to stop; for `ended`, the one that ended.
    """

    kind: Literal["ended", "cancel", "log"]
    queue: QueueName
    job: str | None
