"""The arithmetic of rate limits: a state goes in, the decision and the new state come out.

lua/rates.lua copies it. A state is two numbers. For a window: how many starts it has counted, and
when it opened. For a bucket: how many tokens it held, and when. None is the state of an unused
limit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from jobq.core.queues import Limits, RateData, Tokens, Window

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


def stored(rate: RateData, state: RateState) -> tuple[str, float, int]:
    """The state as a store keeps it. It names the kind of its limit, because limits can change."""
    return (_KINDS[type(rate)], *state)


def loaded(rate: RateData, kept: Sequence[Any] | None) -> RateState | None:
    """The state that `stored` returned, for a limit that may have changed.

    A changed window keeps its starts, and a changed bucket its tokens. If a window became a bucket,
    or the other way round, the state starts over.
    """
    return RateState(*kept[1:]) if kept is not None and kept[0] == _KINDS[type(rate)] else None


def room(rate: RateData, state: RateState | None, now_ms: int) -> int:
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
