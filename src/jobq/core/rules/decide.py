"""Decides what happens after a run: how it ended goes in, an outcome for the store comes out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from jobq.core.control import (
    RateLimited,
    Reject,
    RetryAfter,
    Snooze,
    WaitForChildren,
    WaitForSignal,
)
from jobq.core.policies import UNDECLARED, Retry
from jobq.core.records.failures import ReportedError, bounded, describe, fingerprint_of
from jobq.core.records.jobs import (
    AnyOutcome,
    Block,
    Checkpoint,
    Complete,
    Defer,
    DeferReason,
    Fail,
    Failure,
    Hold,
    Lease,
    Reason,
    Release,
    RetryData,
    RetryLater,
    SnoozeFor,
)
from jobq.core.rules import backoff, deferral
from jobq.core.rules.backoff import Random
from jobq.core.values.codec import get_codec
from jobq.errors import UndecodableArguments, UnfitArguments, UnstorableResult

__all__ = [
    "Crashed",
    "End",
    "Released",
    "Raised",
    "Returned",
    "TimedOut",
    "Unknown",
    "decide",
    "policy_of",
]

Encode = Callable[[Any], bytes]


# ── how a run can end ─────────────────────────────────────────────────────────────────────────────


class Returned(msgspec.Struct, frozen=True, gc=False):
    """The handler returned. `result` is encoded."""

    result: bytes | None = None


class Raised(msgspec.Struct, frozen=True):
    """The handler raised, or its arguments or its result could not be coded."""

    error: BaseException


class TimedOut(msgspec.Struct, frozen=True, gc=False):
    """The run did not end in time. With `killed`, it went on when it was asked to stop."""

    seconds: float
    killed: bool = False


class Released(msgspec.Struct, frozen=True, gc=False):
    """The worker stops and releases the job unfinished."""


class Unknown(msgspec.Struct, frozen=True, gc=False):
    """The worker has no task of that name."""

    name: str


class Crashed(msgspec.Struct, frozen=True, gc=False):
    """The process that ran the job died."""

    message: str


End = Returned | Raised | TimedOut | Released | Unknown | Crashed


class UnknownTask(LookupError):
    """No task of that name is registered with the worker."""


class ProcessCrashed(RuntimeError):
    """The process that ran a job died."""


# ── the decision ──────────────────────────────────────────────────────────────────────────────────


def decide(
    lease: Lease,
    end: End,
    *,
    retry: Retry,
    now_ms: int,
    random: Random,
    encode: Encode | None = None,
    checkpoint: Checkpoint | None = None,
) -> AnyOutcome:
    """The outcome of a run that ended like this.

    `retry` is the task's policy; `policy_of` says which one applies. An error or
    a timeout is retried while `lease.failures < max_retries`. `encode` encodes what Snooze saves;
    the default is the codec of the lease. `checkpoint` is what the run has saved last: a Snooze
    that saves nothing keeps it.
    """
    if isinstance(end, Returned):
        return Complete(queue=lease.queue, id=lease.id, token=lease.token, result=end.result)
    if isinstance(end, Released):
        return Release(queue=lease.queue, id=lease.id, token=lease.token)
    if isinstance(end, Raised):
        return _raised(lease, end.error, retry, now_ms, random, encode, checkpoint)
    if isinstance(end, Unknown):
        return _deferred(lease, "unknown", UnknownTask(_NOBODY_KNOWS.format(end.name)), now_ms)
    error, reason = _as_error(end)
    return _failed(lease, error, reason, retry, now_ms, random)


def policy_of(lease: Lease, retry: Retry) -> Retry | RetryData:
    """The policy of the call, else the task's (`retry`), else the queue's default, else Retry's."""
    if lease.retry is not None:
        return lease.retry
    if retry is UNDECLARED and lease.default_retries is not None:
        return RetryData(max_retries=lease.default_retries, jitter=UNDECLARED.jitter)
    return retry


def _as_error(end: TimedOut | Crashed) -> tuple[BaseException, Reason]:
    match end:
        case TimedOut(seconds, killed):
            words = ", went on when it was asked to stop, and was killed" if killed else ""
            return TimeoutError(f"the run did not end within {seconds:g} s{words}"), "timeout"
        case Crashed(message):
            return ProcessCrashed(message), "crashed"


_NOBODY_KNOWS = (
    "no worker has known a task named {!r} for 1 h: is the code that defines it deployed and "
    "imported?"
)


def _deferred(lease: Lease, reason: DeferReason, error: Exception, now_ms: int) -> AnyOutcome:
    """Defer the job, because another worker or the next deploy of this one may be able to run it.

    After a time the job fails with this error, whatever retries it has.
    """
    delay_ms = deferral.delay_ms(lease, reason, now_ms)
    if delay_ms is None:
        return _final(lease, error, reason, now_ms)
    text = "" if reason == "unknown" else bounded(str(error), deferral.MAX_TEXT)
    return Defer(
        queue=lease.queue,
        id=lease.id,
        token=lease.token,
        delay_ms=delay_ms,
        reason=reason,
        text=text,
    )


def _raised(
    lease: Lease,
    error: BaseException,
    retry: Retry,
    now_ms: int,
    random: Random,
    encode: Encode | None,
    checkpoint: Checkpoint | None,
) -> AnyOutcome:
    queue, id, token = lease.queue, lease.id, lease.token
    match error:
        case Snooze():
            saved, number = checkpoint or (None, 0)
            if error.saved is not None:
                try:
                    saved = (encode or get_codec(lease.codec).encode)(error.saved)
                except Exception as unsaved:  # a retry would repeat what the handler has done
                    return _final(lease, unsaved, "error", now_ms)
                number = 0  # the last word of the run
            return SnoozeFor(
                queue=queue,
                id=id,
                token=token,
                delay_ms=error.delay_ms,
                saved=saved,
                saved_number=number,
            )
        case RateLimited():
            return Hold(queue=queue, id=id, token=token, delay_ms=error.delay_ms)
        case WaitForChildren():
            return Block(queue=queue, id=id, token=token, after=error.after, saved=error.saved)
        case WaitForSignal():
            return Block(
                queue=queue,
                id=id,
                token=token,
                signal=error.name,
                seen=error.seen,
                timeout_ms=error.timeout_ms,
                saved=error.saved,
            )
        case Reject():
            cause = error.__cause__ if isinstance(error.__cause__, ReportedError) else error
            return _final(lease, cause, "rejected", now_ms)
        case RetryAfter():
            return _chosen(lease, error, retry, now_ms)
        case UnfitArguments():
            return _deferred(lease, "unfit", error, now_ms)
        case UndecodableArguments() | UnstorableResult():
            return _final(lease, error, "error", now_ms)
        case ReportedError():
            return _failed(lease, error, error.reason, retry, now_ms, random)
    return _failed(lease, error, "error", retry, now_ms, random)


def _chosen(lease: Lease, error: RetryAfter, retry: Retry, now_ms: int) -> AnyOutcome:
    """A failure whose delay the handler chose. The error that made it choose is the one to keep."""
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    exhausted = lease.failures >= policy_of(lease, retry).max_retries
    failure = _failure(lease, error if cause is None else cause, "error", now_ms, exhausted)
    if exhausted:
        return Fail(queue=lease.queue, id=lease.id, token=lease.token, failure=failure)
    return RetryLater(
        queue=lease.queue, id=lease.id, token=lease.token, failure=failure, delay_ms=error.delay_ms
    )


def _final(lease: Lease, error: BaseException, reason: Reason, now_ms: int) -> Fail:
    """The failure of a job that no retry would help."""
    return Fail(
        queue=lease.queue,
        id=lease.id,
        token=lease.token,
        failure=_failure(lease, error, reason, now_ms),
    )


def _failed(
    lease: Lease, error: BaseException, reason: Reason, retry: Retry, now_ms: int, random: Random
) -> AnyOutcome:
    policy = policy_of(lease, retry)
    retried = isinstance(policy, RetryData) or policy.retries(error)
    exhausted = retried and lease.failures >= policy.max_retries
    failure = _failure(lease, error, reason, now_ms, exhausted)
    if retried and not exhausted:
        delay_ms, failure = _delay(policy, lease.failures + 1, error, failure, random)
        if delay_ms is not None:
            return RetryLater(
                queue=lease.queue,
                id=lease.id,
                token=lease.token,
                failure=failure,
                delay_ms=delay_ms,
            )
    return Fail(queue=lease.queue, id=lease.id, token=lease.token, failure=failure)


def _delay(
    policy: Retry | RetryData, n: int, error: BaseException, failure: Failure, random: Random
) -> tuple[int | None, Failure]:
    """The delay, or None to give up.

    If the user's function raises, the computed delay is used, so that its bug does not cost the
    job.
    """
    try:
        return backoff.delay_ms(policy, n, error, random), failure
    except Exception as broken:
        message = bounded(
            f"{failure.message} "
            f"(and the function of Retry(delays=…) raised {type(broken).__name__}: {broken})"
        )
        return backoff.computed_ms(policy, n, random), msgspec.structs.replace(
            failure, message=message
        )


def _failure(
    lease: Lease, error: BaseException, reason: Reason, now_ms: int, exhausted: bool = False
) -> Failure:
    description = describe(error)
    return Failure(
        reason=reason,
        type=description.type,
        message=description.message,
        traceback=description.traceback,
        attempt=lease.attempt,
        at_ms=now_ms,
        fingerprint=fingerprint_of(error, description),
        exhausted=exhausted,
    )
