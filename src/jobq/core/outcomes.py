"""What happens to a job when its run ends, when its lease expires, and when it is due.

The effects of outcomes are a table. Stores look them up, and the Lua library is built with it
(stores/valkey/constants.py).
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from jobq.core.checks import (
    MAX_COUNT,
    MAX_EPOCH_MS,
    MAX_MS,
    check_int,
    check_payload,
    check_short_name,
    check_signal,
)
from jobq.core.failures import (
    MAX_FINGERPRINT,
    MAX_MESSAGE,
    MAX_TRACEBACK,
    MAX_TYPE,
    MAX_WORKER,
)
from jobq.core.records import AnyOutcome, Block, Failure, Mode, SnoozeFor
from jobq.core.spec_checks import check_edges
from jobq.core.states import Kind, State
from jobq.core.unknown import MAX_TEXT
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
(`unknown.waits`).
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
    (see core/clock.py).
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
