"""The arithmetic of rate limits: a state goes in, the answer and the new state come out. lua/rates.lua copies it.

A state is two numbers. For a window: how many starts it has counted, and when it was opened. For a bucket: how many tokens it
held, and when. None is a limit that nothing has used. A state that `is_idle` may be forgotten.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from jobq.core.queues import RateData, Tokens, Window

EPSILON = (
    1e-6  # tokens: floats lose the last bits of rate·time, and a wait that was told must suffice
)
_KINDS: dict[type[RateData], str] = {Window: "w", Tokens: "t"}


class RateState(NamedTuple):
    """What a store keeps per limit."""

    value: float
    at_ms: int


class Taken(NamedTuple):
    """The answer: whether the start may be, the state to keep, and if not, when to ask again."""

    allowed: bool
    state: RateState | None
    retry_in_ms: int = 0


def take(rate: RateData, state: RateState | None, now_ms: int, cost: int = 1) -> Taken:
    """Ask for one start. A window counts it as one, a bucket as the job's cost.

    A cost above the capacity (which was lowered after the job was accepted) needs a full bucket and empties it.
    """
    return (
        _from_window(rate, state, now_ms)
        if isinstance(rate, Window)
        else _from_bucket(rate, state, now_ms, cost)
    )


def stored(rate: RateData, state: RateState) -> tuple[str, float, int]:
    """The state as a store keeps it: with the kind of limit it belongs to, since limits change at run time."""
    return (_KINDS[type(rate)], *state)


def loaded(rate: RateData, kept: Sequence[Any] | None) -> RateState | None:
    """The state that `stored` kept. A changed limit goes on with it: a window keeps its starts and a bucket its tokens, but a
    window that became a bucket, or the other way round, begins afresh."""
    return RateState(*kept[1:]) if kept is not None and kept[0] == _KINDS[type(rate)] else None


def room(rate: RateData, state: RateState | None, now_ms: int) -> int:
    """How many starts of cost 1 there is room for now."""
    if isinstance(rate, Window):
        return max(0, rate.limit - int(_window(rate, state, now_ms).value))
    return math.floor(_level(rate, state, now_ms) + EPSILON)


def is_idle(rate: RateData, state: RateState | None, now_ms: int) -> bool:
    """Whether the state says no more than None would."""
    if state is None:
        return True
    if isinstance(rate, Window):
        return not _open(rate, state, now_ms)
    return _level(rate, state, now_ms) + EPSILON >= rate.capacity


def _open(rate: Window, state: RateState, now_ms: int) -> bool:
    # Also when the clock was set back a little; set back far, the window would hold its queue until the clock caught up.
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
    elapsed_ms = max(0, now_ms - state.at_ms)  # a clock set back takes no tokens away
    return max(0.0, min(float(rate.capacity), state.value + elapsed_ms * rate.refill / 1000))


def _from_bucket(rate: Tokens, state: RateState | None, now_ms: int, cost: int) -> Taken:
    level, price = _level(rate, state, now_ms), min(cost, rate.capacity)
    # Time does not go back in the state: a clock set back and forth again would refill twice for one stretch of time.
    # But no further ahead than a whole refill takes: a clock set back by a day must not hold its queue for a day.
    at_ms = (
        now_ms
        if state is None
        else max(now_ms, min(state.at_ms, now_ms + math.ceil(rate.capacity * 1000 / rate.refill)))
    )
    if level + EPSILON >= price:
        return Taken(True, RateState(max(0.0, level - price), at_ms))
    # Half of the tolerance only: with all of it, floats could leave the level just short when the wait is over.
    wait_ms = max(1, math.ceil((price - level - EPSILON / 2) * 1000 / rate.refill))
    return Taken(False, RateState(level, at_ms), at_ms - now_ms + wait_ms)
