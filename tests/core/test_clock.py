"""The store's time when the clock is set back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from jobq.core.records.defaults import HOUR_MS
from jobq.core.rules.clock import FULL_SPEED_MS, Anchor, Reading, steady

NOW = 1_700_000_000_000


def test_a_clock_that_goes_on_is_the_stores_time() -> None:
    assert steady(NOW + 5, NOW) == Reading(NOW + 5, None)
    assert steady(NOW, NOW, Anchor(1, 1)) == Reading(NOW, None)


def test_a_small_correction_makes_time_stand_still() -> None:
    assert steady(NOW - 999, NOW) == Reading(NOW, None)


def test_time_goes_on_at_full_speed_and_then_at_half_until_the_clock_has_caught_up() -> None:
    back = NOW - HOUR_MS
    now, anchor = steady(back, NOW)
    assert (now, anchor) == (NOW, Anchor(NOW, back))
    assert steady(back + 30_000, now, anchor).now_ms == NOW + 30_000
    assert steady(back + FULL_SPEED_MS + 1_000, now, anchor).now_ms == NOW + FULL_SPEED_MS + 500
    met = back + FULL_SPEED_MS + 2 * HOUR_MS
    assert steady(met, now, anchor).now_ms == met


@given(st.lists(st.integers(-2 * HOUR_MS, 2 * HOUR_MS), max_size=30))
def test_time_never_goes_back_and_is_never_behind_the_clock(moves: list[int]) -> None:
    clock, seen, anchor = NOW, 0, None
    for move in moves:
        clock += move
        now, anchor = steady(clock, seen, anchor)
        assert now >= seen
        assert now >= clock
        seen = now


@given(st.integers(1_000, 48 * HOUR_MS), st.lists(st.integers(0, HOUR_MS), max_size=30))
def test_nothing_is_late_by_more_than_its_own_length(back: int, moves: list[int]) -> None:
    clock = NOW - back
    seen, anchor = steady(clock, NOW)
    for move in moves:
        clock += move
        seen, anchor = steady(clock, seen, anchor)
    assert seen - NOW >= (clock - (NOW - back)) // 2
