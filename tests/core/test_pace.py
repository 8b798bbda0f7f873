"""Intervals that grow with the fleet."""

from __future__ import annotations

import pytest

from jobq.core.rules.fleet import Pace, stretch


@pytest.mark.parametrize(
    ("workers", "times"), [(0, 1), (1, 1), (100, 1), (150, 1.5), (600, 6), (1000, 6), (10**6, 6)]
)
def test_each_does_less_often_what_many_do(workers: int, times: float) -> None:
    assert stretch(workers) == times


def test_a_fleet_that_grows_and_shrinks_is_heard_of() -> None:
    pace = Pace()
    assert pace.stretch == 1
    pace.heard(300)
    assert pace.stretch == 3
    pace.heard(3)
    assert pace.stretch == 1
