"""How many stalls a job may have, and when it is on its last chance."""

from __future__ import annotations

import pytest

from jobq.core.rules.outcomes import is_last_chance, max_stalls, merged_stalls


@pytest.mark.parametrize(
    ("own", "declared", "limit"),
    [
        (None, {}, 3),
        (None, {"work": 1}, 1),
        (None, {"other": 1}, 3),
        (None, {"work": 0}, 0),
        (0, {"work": 5}, 0),
        (7, {}, 7),
    ],
)
def test_a_calls_own_limit_wins_over_its_tasks(
    own: int | None, declared: dict[str, int], limit: int
) -> None:
    assert max_stalls(own, "work", declared) == limit


@pytest.mark.parametrize(
    ("stalls", "allowed", "last"),
    [
        (0, 3, False),
        (2, 3, False),
        (3, 3, True),
        (4, 3, True),
        (1, 1, True),
        (0, 1, False),
        (0, 0, False),
        (2, 0, False),
    ],
)
def test_a_last_chance_has_stalled_before_and_fails_with_its_next_stall(
    stalls: int, allowed: int, last: bool
) -> None:
    assert is_last_chance(stalls, allowed) is last


def test_a_task_at_the_default_needs_no_entry() -> None:
    assert merged_stalls({"a": 1, "b": 2}, {"b": 3, "c": 3, "d": 0}) == {"a": 1, "d": 0}
