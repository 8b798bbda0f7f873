"""The store's time when the machine's clock is set back. lua/clock.lua copies `steady`.

A store's time never goes back. Leases, delays, rate windows, holds and locks are stored as the
times at which they end, so a clock that is set back by an hour would make all of them an hour late.
Instead the store's time continues from where it was: at full speed for `FULL_SPEED_MS`, then at
half speed until the clock has caught up. So anything shorter than `FULL_SPEED_MS` is on time, and
nothing is late by more than its own length. Times of day (`at`, schedules) follow the clock and are
never early.
"""

from __future__ import annotations

from typing import NamedTuple

from jobq.core.records.defaults import MINUTE_MS, SECOND_MS

JITTER_MS = SECOND_MS
"""A clock that is behind by less than this was corrected, not set back.

The store's time stands still until the clock has caught up.
"""
FULL_SPEED_MS = 10 * MINUTE_MS
"""Ten minutes: longer than leases and most rate windows."""


class Anchor(NamedTuple):
    """The moment when a clock was found to be set back: the store's time and the clock's time."""

    store_ms: int
    clock_ms: int


class Reading(NamedTuple):
    """The store's time, and the anchor to keep for the next reading."""

    now_ms: int
    anchor: Anchor | None


def steady(clock_ms: int, seen_ms: int, anchor: Anchor | None = None) -> Reading:
    """The store's time at `clock_ms`. Never less than `seen_ms`, the last one that was read."""
    if anchor is not None:
        now_ms = anchor.store_ms + _advanced(clock_ms - anchor.clock_ms)
        if now_ms >= seen_ms and now_ms > clock_ms:
            return Reading(now_ms, anchor)
    if clock_ms >= seen_ms:
        return Reading(clock_ms, None)
    if seen_ms - clock_ms < JITTER_MS:
        return Reading(seen_ms, anchor)
    return Reading(seen_ms, Anchor(seen_ms, clock_ms))


def _advanced(elapsed_ms: int) -> int:
    return elapsed_ms - max(0, elapsed_ms - FULL_SPEED_MS) // 2
