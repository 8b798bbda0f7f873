"""Every two features of a job, on every kind of queue.

Both features keep their promises, and every store records the same events.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.pairs.matrix import Scenario, pairs


@pytest.mark.parametrize("scenario", pairs(), ids=lambda scenario: scenario.name)
def test_two_features_keep_their_promises_together(
    scenario: Scenario, play: Callable[[Scenario], None]
) -> None:
    play(scenario)
