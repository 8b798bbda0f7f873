"""Every two features of a job, on every kind of queue: both keep their promises, and every store tells the same story."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.pairs.matrix import Scenario, pairs


def marked(scenario: Scenario) -> object:
    """The scenario, with a strict mark if it does not hold yet."""
    marks = [pytest.mark.xfail(strict=True, reason=scenario.changes)] if scenario.changes else []
    return pytest.param(scenario, id=scenario.name, marks=marks)


@pytest.mark.parametrize("scenario", [marked(scenario) for scenario in pairs()])
def test_two_features_keep_their_promises_together(scenario: Scenario, play: Callable[[Scenario], None]) -> None:
    play(scenario)
