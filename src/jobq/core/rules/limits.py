"""What may start and what may wait: rates, holds, and `max_waiting`. Pure.

lua/rates.lua copies the rates. The state of a rate is two numbers. For a window: how many starts it
has counted, and when it opened. For a bucket: how many tokens it held, and when. None is the state
of an unused limit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from jobq.core.records.jobs import JobKey, JobSpec
from jobq.core.records.queues import Limits, RateData, Tokens, Window
from jobq.core.records.states import State
from jobq.errors import AcceptedJob, ConfigError, QueueFull

EPSILON = 1e-6
"""Tokens.

Floats lose the last bits of rate·time, and a job must start after the wait it was given.
"""
_KINDS: dict[type[RateData], str] = {Window: "w", Tokens: "t"}


class RateState(NamedTuple):
    """What a store keeps per limit."""

    value: float
    at_ms: int


class Taken(NamedTuple):
    """The decision: whether the job may start, the state to keep, and if not, when to ask again."""

    allowed: bool
    state: RateState | None
    retry_in_ms: int = 0


def take(rate: RateData, state: RateState | None, now_ms: int, cost: int = 1) -> Taken:
    """Ask for one start. A window counts it as one, a bucket as the job's cost.

    If the capacity was lowered below a job's cost after the job was accepted, the job needs a full
    bucket and empties it.
    """
    return (
        _from_window(rate, state, now_ms)
        if isinstance(rate, Window)
        else _from_bucket(rate, state, now_ms, cost)
    )


def stored_rate(rate: RateData, state: RateState) -> tuple[str, float, int]:
    """The state as a store keeps it. It names the kind of its limit, because limits can change."""
    return (_KINDS[type(rate)], *state)


def loaded_rate(rate: RateData, kept: Sequence[Any] | None) -> RateState | None:
    """The state that `stored_rate` returned, for a limit that may have changed.

    A changed window keeps its starts, and a changed bucket its tokens. If a window became a bucket,
    or the other way round, the state starts over.
    """
    return RateState(*kept[1:]) if kept is not None and kept[0] == _KINDS[type(rate)] else None


def starts_left(rate: RateData, state: RateState | None, now_ms: int) -> int:
    """How many jobs of cost 1 may start now."""
    if isinstance(rate, Window):
        return max(0, rate.limit - int(_window(rate, state, now_ms).value))
    return math.floor(_level(rate, state, now_ms) + EPSILON)


def _open(rate: Window, state: RateState, now_ms: int) -> bool:
    # Also if the clock was set back by less than a window. If it was set back further, the window
    # ends, or it would hold its queue until the clock has caught up.
    return abs(now_ms - state.at_ms) < rate.per_ms


def _window(rate: Window, state: RateState | None, now_ms: int) -> RateState:
    return state if state is not None and _open(rate, state, now_ms) else RateState(0, now_ms)


def _from_window(rate: Window, state: RateState | None, now_ms: int) -> Taken:
    window = _window(rate, state, now_ms)
    if window.value < rate.limit:
        return Taken(True, RateState(window.value + 1, window.at_ms))
    return Taken(False, window, window.at_ms + rate.per_ms - now_ms)


def _level(rate: Tokens, state: RateState | None, now_ms: int) -> float:
    if state is None:
        return float(rate.capacity)
    elapsed_ms = max(0, now_ms - state.at_ms)  # a clock that is set back removes no tokens
    return max(0.0, min(float(rate.capacity), state.value + elapsed_ms * rate.refill / 1000))


def _from_bucket(rate: Tokens, state: RateState | None, now_ms: int, cost: int) -> Taken:
    level, price = _level(rate, state, now_ms), min(cost, rate.capacity)
    # The time in the state does not go back: otherwise a clock that is set back and forth refills
    # twice for the same time. But it is ahead of now by at most a whole refill: a clock that is set
    # back by a day must not hold its queue for a day.
    at_ms = (
        now_ms
        if state is None
        else max(now_ms, min(state.at_ms, now_ms + math.ceil(rate.capacity * 1000 / rate.refill)))
    )
    if level + EPSILON >= price:
        return Taken(True, RateState(max(0.0, level - price), at_ms))
    # Use half of the tolerance: with all of it, rounding could leave the level just short
    # afterwards.
    wait_ms = max(1, math.ceil((price - level - EPSILON / 2) * 1000 / rate.refill))
    return Taken(False, RateState(level, at_ms), at_ms - now_ms + wait_ms)


def highest_cost(found: Limits) -> int | None:
    """The highest cost with which a job can start at all. None: any."""
    capacities = [
        rate.capacity for rate in (found.rate, found.key_rate) if isinstance(rate, Tokens)
    ]
    return min(capacities, default=None)


# Holds: no job of a queue, or of one key, starts before a given time.
#
# A handler asks for one with `RateLimited`, an operator with `hold`. Of two holds, the later end
# counts. Releasing it, resuming the queue, or changing the queue's limits lifts a hold. Changing a
# key's limits, or the queue's, lifts the hold of that key. A hold is stored with its length (`ms`),
# so that it is late by at most that length if the clock is set back.


def hold_end(until_ms: int, ms: int, now_ms: int) -> int:
    """When a hold ends, seen from now.

    If the end is more than `ms` away, the clock was set back, and the hold starts over.
    """
    return min(until_ms, now_ms + ms)


def hold_reason(ms: int, key: str | None) -> str:
    """The reason in the event of a hold."""
    return f"{ms} ms" if key is None else f"{ms} ms, key {key}"


def lifted_reason(key: str | None) -> str | None:
    """The reason in the event of a lifted hold."""
    return None if key is None else f"key {key}"


def no_keys_to_hold(queue: str) -> ConfigError:
    """The error for a hold on a key of a plain queue."""
    return ConfigError(
        f"queue {queue!r} is plain, so its jobs have no keys: leave out key= to hold the queue"
    )


# How many jobs may wait in a queue (`max_waiting`), and which jobs count.
#
# Waiting, delayed and blocked jobs count, and so do places that flows have reserved and not filled
# yet. Only a new job is refused. A duplicate adds nothing, so it is never refused. Neither are jobs
# that come back (a retry, a stall, a release, an unblocked job, a rerun), the follow-up of a
# keep_last job, and dead-letter copies: refusing them would lose work that was accepted before.

COUNTED_STATES = (State.WAITING, State.DELAYED, State.BLOCKED)
"""The states that count towards `max_waiting`. lua/bounds.lua (J.room) adds up the same ones."""


def share(max_waiting: int, partitions: int) -> int:
    """How many jobs one partition may hold.

    Rounded up, so that all partitions together hold at least `max_waiting`.
    """
    return -(-max_waiting // partitions)


def places_left(max_waiting: int, counted: int, reserved: int) -> int:
    """How many new jobs fit.

    Negative if jobs came back to a full queue, or if the limit was lowered.
    """
    return max_waiting - counted - reserved


def depend_on_each_other(specs: Sequence[JobSpec]) -> bool:
    """Whether some of these specs wait for others of them.

    Such specs are accepted together or refused together, so that no job waits for one that was
    refused.
    """
    if not any(spec.after for spec in specs):
        return False
    own = {JobKey(spec.queue, spec.id) for spec in specs}
    return any(edge.job in own for spec in specs for edge in spec.after)


def queue_full(
    queue: str, max_waiting: int, *, accepted: Sequence[AcceptedJob] = (), refused: int = 1
) -> QueueFull:
    """The error for a caller whose jobs did not fit."""
    bulk = (
        f"Accepted: {len(accepted):,} jobs (see `error.accepted`), refused: {refused:,}. "
        if accepted or refused > 1
        else ""
    )
    return QueueFull(
        f"queue {queue!r} is full: max_waiting={max_waiting} limits how many jobs may be waiting, "
        f"delayed or blocked. {bulk}Enqueue again when workers have caught up, or raise the limit "
        "with queue.set_limits(max_waiting=…)",
        queue,
        max_waiting,
        accepted,
        refused,
    )
