"""What happens to a job when its run, lease, ttl or child ends, and when it is due.

The effects of outcomes are a table. Stores look them up, and the Lua library is built with it
(stores/valkey/library.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

import msgspec

from jobq.core.policies.retry import stored_retry
from jobq.core.records.defaults import ERROR_LENGTH
from jobq.core.records.failures import (
    MAX_FINGERPRINT,
    MAX_MESSAGE,
    MAX_TRACEBACK,
    MAX_TYPE,
    MAX_WORKER,
    bounded,
)
from jobq.core.records.jobs import (
    NO_OPTIONS,
    AnyOutcome,
    Block,
    ChildPolicy,
    Failure,
    JobRecord,
    Mode,
    SnoozeFor,
)
from jobq.core.records.states import Kind, State
from jobq.core.rules.deferral import MAX_TEXT
from jobq.core.rules.options import check_edges
from jobq.core.values.checks import (
    MAX_COUNT,
    MAX_EPOCH_MS,
    MAX_MS,
    check_int,
    check_payload,
    check_short_name,
    check_signal,
)
from jobq.errors import InvalidJob

QueueEnd = Literal["back", "front", "first"]
"""Where a job goes among the waiting jobs of its priority.

`back`: behind all. `front`: to the place it had, before jobs that came later. `first`: before all.
"""


class Effect(NamedTuple):
    """What an outcome does to a job."""

    kind: Kind  # the kind of the event
    state: State  # or delayed, if the outcome has a delay
    failed: bool = False  # the run counts as a failure
    returns: bool = False  # to the place it had; if False, `queue_end_when_due` decides


EFFECTS: dict[str, Effect] = {
    "complete": Effect(Kind.COMPLETED, State.COMPLETED),
    "fail": Effect(Kind.FAILED, State.FAILED, failed=True),
    "retry": Effect(Kind.RETRIED, State.WAITING, failed=True),
    "snooze": Effect(Kind.SNOOZED, State.WAITING),
    "release": Effect(Kind.RELEASED, State.WAITING, returns=True),
    "hold": Effect(Kind.LIMITED, State.WAITING, returns=True),
    "defer": Effect(Kind.SNOOZED, State.WAITING, returns=True),
    "block": Effect(Kind.BLOCKED, State.BLOCKED),
}
"""By the tag of the outcome."""

MAX_CHECKPOINTS = 2**32 - 1
"""Checkpoints of one run that are told apart: so many bits does its attempt leave in 64."""

_CANCELLED = Effect(Kind.CANCELLED, State.CANCELLED)
_STALLED = Effect(Kind.STALLED, State.WAITING, returns=True)
_STALLED_TOO_OFTEN = Effect(Kind.FAILED, State.FAILED)
DELAYING = frozenset({"retry", "snooze", "defer"})
"""Outcomes whose delay delays the job.

The delay of a `hold` is the delay of its key or queue. So is that of a `defer` in a keyed queue
(`deferral.waits`).
"""


def effect(outcome: str, *, delay_ms: int = 0, cancel_asked: bool = False) -> Effect:
    """What an outcome does.

    A job that was asked to stop and did not complete is cancelled. A failed run still counts as a
    failure.
    """
    found = EFFECTS[outcome]
    if cancel_asked and found.state is not State.COMPLETED:
        return _CANCELLED._replace(failed=found.failed)
    if delay_ms > 0 and outcome in DELAYING:
        return found._replace(state=State.DELAYED)
    return found


def stall(*, stalls: int, max_stalls: int, cancel_asked: bool = False) -> Effect:
    """What an expired lease does.

    `stalls` includes this one. Copied by lua/upkeep.lua (J.stalled).
    """
    if cancel_asked:
        return _CANCELLED
    return _STALLED if stalls <= max_stalls else _STALLED_TOO_OFTEN


def queue_end_when_due(mode: Mode | None, *, started: bool, lifo: bool) -> QueueEnd:
    """Where a job goes when it becomes waiting. Copied by lua/upkeep.lua (J.queue_end_when_due).

    A job that has started in this life returns to the front of its key, or to the back of a plain
    queue.
    """
    if started:
        return "front" if mode == "keyed" else "back"
    return "first" if lifo else "back"


def checkpoint_place(number: int, *, attempt: int) -> int:
    """The place of a checkpoint among all of its job; 0 for one that its worker has not counted.

    Numbers begin again with each lease, and each lease is an attempt. A store keeps the highest.
    """
    return attempt << 32 | min(number, MAX_CHECKPOINTS) if number > 0 else 0


def is_late(number: int, *, attempt: int, newest: int) -> bool:
    """Whether a checkpoint of the lease is stored already, or was held up until a newer one was.

    `newest` is the highest place on record. Copied by lua/leases.lua (J.is_late) and by `note` of
    the SQL files.
    """
    return 0 < checkpoint_place(number, attempt=attempt) <= newest


def keeps_saved(snooze: SnoozeFor, *, attempt: int, newest: int) -> bool:
    """Whether what the job has saved stays. Copied by lua/settle.lua (BESIDES.snooze)."""
    number = snooze.saved_number
    return (number > 0 and snooze.saved is None) or is_late(number, attempt=attempt, newest=newest)


def due_ms(*, now_ms: int, delay_ms: int = 0, at_ms: int | None = None, ahead_ms: int = 0) -> int:
    """When a job that is accepted or unblocked now is due, in the store's time. A past time is now.

    `at_ms` is a time of the clock, and `ahead_ms` is how far the store's time is ahead of the clock
    (see core/rules/clock.py).
    """
    return max(now_ms, now_ms + delay_ms if at_ms is None else at_ms + ahead_ms)


def too_early(at_ms: int | None, *, attempt: int, now_ms: int, ahead_ms: int) -> bool:
    """Whether the clock has not reached the time of day of a job that is due in the store's time.

    This happens after the clock was set back.
    """
    return ahead_ms > 0 and attempt == 0 and at_ms is not None and at_ms > now_ms - ahead_ms


def ttl_end(ttl_ms: int | None, *, due_ms: int, attempt: int) -> int | None:
    """When a waiting job expires.

    Its ttl counts from when it is due until its first start. None: never.
    """
    return None if ttl_ms is None or attempt > 0 else due_ms + ttl_ms


def check_outcome(outcome: AnyOutcome, *, max_payload: int | None = None) -> None:
    """InvalidJob or PayloadTooLarge names what is wrong with the end of a run, as another process
    reports it. `max_payload` is how many bytes its handler may encode.
    """
    delay_ms = getattr(outcome, "delay_ms", 0)
    if delay_ms:
        check_int(delay_ms, "delay_ms", high=MAX_MS)
    data = getattr(outcome, "result", None) or getattr(outcome, "saved", None)
    if data is not None and max_payload is not None and len(data) > max_payload:
        check_payload(data, max_payload, "what the run ended with takes")
    if text := getattr(outcome, "text", ""):
        check_int(len(text), "the length of text", high=MAX_TEXT)
    failure = getattr(outcome, "failure", None)
    if failure is not None:
        _check_failure(failure)
    if isinstance(outcome, Block):
        _check_block(outcome)


def _check_failure(failure: Failure) -> None:
    check_int(failure.attempt, "failure.attempt", high=MAX_COUNT)
    check_int(failure.at_ms, "failure.at_ms", high=MAX_EPOCH_MS)
    check_int(len(failure.type), "the length of failure.type", high=MAX_TYPE)
    check_int(len(failure.message), "the length of failure.message", high=MAX_MESSAGE)
    if failure.traceback is not None:
        check_int(len(failure.traceback), "the length of failure.traceback", high=MAX_TRACEBACK)
    if failure.fingerprint is not None:
        check_short_name(failure.fingerprint, "failure.fingerprint", MAX_FINGERPRINT)
    if failure.worker is not None:
        check_short_name(failure.worker, "failure.worker", MAX_WORKER)


def _check_block(outcome: Block) -> None:
    check_int(outcome.seen, "seen", high=MAX_COUNT)
    if outcome.timeout_ms is not None:
        check_int(outcome.timeout_ms, "timeout_ms", high=MAX_MS)
    if outcome.signal is not None:
        check_signal(outcome.signal)
    for edge in check_edges(outcome.after):
        if edge.job.queue.tenant != outcome.queue.tenant:
            raise InvalidJob(
                f"job {outcome.id!r} waits for a job of another tenant: {edge.job.id!r}"
            )


# How many stalls a job may have, and when it is on its last chance. Pure.

DEFAULT_MAX_STALLS = 3
"""How many lost leases a job survives, if neither its call nor its task sets a limit."""


def max_stalls(own: int | None, name: str, declared: Mapping[str, int]) -> int:
    """The limit for a job of task `name`.

    It is the job's own limit, or else what workers declared for the task, or else the default.
    """
    return declared.get(name, DEFAULT_MAX_STALLS) if own is None else own


def is_last_chance(stalls: int, allowed: int) -> bool:
    """Whether a job that has stalled before would fail with its next stall.

    Never with `allowed=0`, because such a job fails with its first stall.
    """
    return 1 <= allowed <= stalls


def merged_stalls(stored: Mapping[str, int], declared: Mapping[str, int]) -> dict[str, int]:
    """What is stored after a worker has declared its tasks.

    A task with the default needs no entry.
    """
    return {name: n for name, n in {**stored, **declared}.items() if n != DEFAULT_MAX_STALLS}


# Failures that a store records without a worker: a lost lease, a passed ttl, a failed child.
#
# The messages are %-templates, because lua/verdicts.lua fills in the same ones. Types and
# fingerprints are the same on every store, so failures of one cause group together.

STALLED_TEXT = "the lease of attempt %d expired: stall %d, and max_stalls is %d"
EXPIRED_TEXT = "the job did not start within its ttl of %g s"
CHILD_FAILED_TEXT = "job %s (%s), which this job waits for, failed: %s"
CHILD_CANCELLED_TEXT = "job %s (%s), which this job waits for, was cancelled"
UNREADABLE_TEXT = (
    "the stored record of this job cannot be read: "
    "another program has written to the store, or the disk has failed"
)
CHILD_GONE_TEXT = "job %s, which this job waits for, is gone"

_LAST_MS = 253_402_300_799_999
"""The end of the year 9999, in ms since the epoch. Python's calendar ends there."""


def error_text(failure: Failure) -> str:
    """A failure as an event shows it: type and message, cut to a bounded length."""
    return f"{failure.type}: {failure.message}"[:ERROR_LENGTH]


# ── leases and ttls ───────────────────────────────────────────────────────────────────────────────


def stall_failure(
    *, attempt: int, stalls: int, max_stalls: int, worker: str | None, now_ms: int
) -> Failure:
    """The failure of a run whose lease expired. `stalls` includes this one.

    `exhausted` is True if it was one too many, so the job fails.
    """
    return Failure(
        reason="stalled",
        type="LeaseLost",
        message=STALLED_TEXT % (attempt, stalls, max_stalls),
        attempt=attempt,
        at_ms=now_ms,
        fingerprint="stalled",
        worker=worker,
        exhausted=stalls > max_stalls,
    )


def ttl_failure(*, ttl_ms: int, attempt: int, now_ms: int) -> Failure:
    """The failure of a job that did not start within its ttl."""
    message = EXPIRED_TEXT % (ttl_ms / 1000)
    return Failure(
        reason="expired",
        type="Expired",
        message=message,
        attempt=attempt,
        at_ms=now_ms,
        fingerprint="expired",
    )


def unreadable_failure(*, attempt: int, worker: str | None, now_ms: int) -> Failure:
    """The failure of a job whose stored record cannot be read.

    It is not retried, because it would not become readable.
    """
    return Failure(
        reason="error",
        type="Unreadable",
        message=UNREADABLE_TEXT,
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
        return unreadable_failure(attempt=0, worker=None, now_ms=0)
    if own.type == "Unreadable":
        return own
    message = bounded(f"{UNREADABLE_TEXT}. Its failure was {own.type}: {own.message}")
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
        else bounded(CHILD_FAILED_TEXT % (child.id, child.name, cause.message))
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
        CHILD_GONE_TEXT % child.id
        if child.name is None
        else CHILD_CANCELLED_TEXT % (child.id, child.name)
    )
    return Failure(
        reason="child",
        type="JobCancelled",
        message=message,
        attempt=child.attempt,
        at_ms=child.finished_ms,
        fingerprint="cancelled",
    )
