"""Failures that a store records without a worker: a lost lease, a passed ttl, a failed child.

The messages are %-templates, because lua/verdicts.lua fills in the same ones. Types and
fingerprints are the same on every store, so failures of one cause group together.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from jobq.core.call_options import NO_OPTIONS
from jobq.core.defaults import ERROR_LENGTH
from jobq.core.failures import bounded
from jobq.core.policies.retry import stored_retry
from jobq.core.records import ChildPolicy, Failure, JobRecord
from jobq.core.states import State

STALLED = "the lease of attempt %d expired: stall %d, and max_stalls is %d"
EXPIRED = "the job did not start within its ttl of %g s"
CHILD_FAILED = "job %s (%s), which this job waits for, failed: %s"
CHILD_CANCELLED = "job %s (%s), which this job waits for, was cancelled"
UNREADABLE = (
    "the stored record of this job cannot be read: "
    "another program has written to the store, or the disk has failed"
)
_LAST_MS = 253_402_300_799_999
"""The end of the year 9999, in ms since the epoch. Python's calendar ends there."""
CHILD_GONE = "job %s, which this job waits for, is gone"


def error_text(failure: Failure) -> str:
    """A failure as an event shows it: type and message, cut to a bounded length."""
    return f"{failure.type}: {failure.message}"[:ERROR_LENGTH]


# ── leases and ttls ───────────────────────────────────────────────────────────────────────────────


def stalled(
    *, attempt: int, stalls: int, max_stalls: int, worker: str | None, now_ms: int
) -> Failure:
    """The failure of a run whose lease expired. `stalls` includes this one.

    `exhausted` is True if it was one too many, so the job fails.
    """
    return Failure(
        reason="stalled",
        type="LeaseLost",
        message=STALLED % (attempt, stalls, max_stalls),
        attempt=attempt,
        at_ms=now_ms,
        fingerprint="stalled",
        worker=worker,
        exhausted=stalls > max_stalls,
    )


def expired(*, ttl_ms: int, attempt: int, now_ms: int) -> Failure:
    """The failure of a job that did not start within its ttl."""
    message = EXPIRED % (ttl_ms / 1000)
    return Failure(
        reason="expired",
        type="Expired",
        message=message,
        attempt=attempt,
        at_ms=now_ms,
        fingerprint="expired",
    )


def unreadable(*, attempt: int, worker: str | None, now_ms: int) -> Failure:
    """The failure of a job whose stored record cannot be read.

    It is not retried, because it would not become readable.
    """
    return Failure(
        reason="error",
        type="Unreadable",
        message=UNREADABLE,
        attempt=attempt,
        at_ms=now_ms,
        fingerprint="unreadable",
        worker=worker,
    )


def legible(record: JobRecord, *, damaged: bool = False) -> JobRecord:
    """The record, if it can be shown: its policy is one, and its times are times.

    Otherwise, and if it is `damaged`, what is left of it: its failure says that it cannot be read,
    and what cannot be shown has its default. So one bad record never fails a listing.
    """
    options = record.options
    if not (damaged or options is NO_OPTIONS):
        try:
            if options.retry is not None:
                stored_retry(options.retry)
        except Exception:
            damaged = True
        spans = (options.delay_ms, options.ttl_ms, options.result_ttl_ms, options.timeout_ms)
        unique = None if options.unique is None else options.unique.ttl_ms
        damaged = damaged or not all(map(_is_time, (*spans, options.at_ms, unique)))
    if not damaged and (
        _is_time(record.created_ms)
        and _is_time(record.due_ms)
        and _is_time(record.started_ms)
        and _is_time(record.finished_ms)
    ):
        return record
    return msgspec.structs.replace(
        record,
        options=NO_OPTIONS,
        created_ms=record.created_ms if _is_time(record.created_ms) else 0,
        due_ms=record.due_ms if _is_time(record.due_ms) else None,
        started_ms=record.started_ms if _is_time(record.started_ms) else None,
        finished_ms=record.finished_ms if _is_time(record.finished_ms) else None,
        failure=_damage(record.failure),
    )


def _damage(own: Failure | None) -> Failure:
    """What is shown as the failure of a damaged job. It also tells what the job's own one says."""
    if own is None:
        return unreadable(attempt=0, worker=None, now_ms=0)
    if own.type == "Unreadable":
        return own
    message = bounded(f"{UNREADABLE}. Its failure was {own.type}: {own.message}")
    return msgspec.structs.replace(own, type="Unreadable", message=message)


def _is_time(ms: int | None) -> bool:
    """Whether a stored time or period can be shown as one."""
    return ms is None or 0 <= ms <= _LAST_MS


# ── children ──────────────────────────────────────────────────────────────────────────────────────


class ChildEnd(NamedTuple):
    """How a job ended that other jobs wait for.

    `id` is the id they wait for. `name` is None if there is no record of the job.
    """

    id: str
    name: str | None
    state: State
    failure: Failure | None = None
    attempt: int = 0
    finished_ms: int = 0


def fails_parent(policy: ChildPolicy, state: State) -> bool:
    """Whether this end of a child fails the parent. The policy is the parent's."""
    return policy == "fail" and state is not State.COMPLETED


def failure_for_parent(policy: ChildPolicy, child: ChildEnd) -> Failure | None:
    """The failure that a parent with the policy `continue` receives in place of a result."""
    if policy != "continue" or child.state is State.COMPLETED:
        return None
    if child.state is State.FAILED and child.failure is not None:
        return child.failure
    return _not_done(child)


def parent_failure(child: ChildEnd, *, attempt: int, now_ms: int) -> Failure:
    """The failure of a parent with the policy `fail`.

    It names the child, or in a chain of parents the job that failed first. `attempt` is the
    parent's own; the parent may not have run at all.
    """
    cause = child.failure
    if child.state is not State.FAILED or cause is None:
        return msgspec.structs.replace(_not_done(child), attempt=attempt, at_ms=now_ms)
    message = (
        cause.message
        if cause.reason == "child"
        else bounded(CHILD_FAILED % (child.id, child.name, cause.message))
    )
    return Failure(
        reason="child",
        type=cause.type,
        message=message,
        traceback=cause.traceback,
        attempt=attempt,
        at_ms=now_ms,
        fingerprint=cause.fingerprint,
    )


def _not_done(child: ChildEnd) -> Failure:
    message = (
        CHILD_GONE % child.id if child.name is None else CHILD_CANCELLED % (child.id, child.name)
    )
    return Failure(
        reason="child",
        type="JobCancelled",
        message=message,
        attempt=child.attempt,
        at_ms=child.finished_ms,
        fingerprint="cancelled",
    )
