"""The order in which a worker looks into its queues."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from jobq.core.rules.fleet import by_weight, in_strict_order, in_turns


def test_queues_take_turns_to_be_first() -> None:
    assert in_turns("abc") == [("a", "b", "c"), ("b", "c", "a"), ("c", "a", "b")]


def test_a_strict_order_never_changes() -> None:
    assert in_strict_order("abc") == [("a", "b", "c")]


def test_turns_by_weight_are_spread_evenly() -> None:
    firsts = [order[0] for order in by_weight("abc", {"a": 4, "b": 2, "c": 1})]
    assert "".join(firsts) == "abacaba"


@given(st.dictionaries(st.text(min_size=1, max_size=3), st.integers(1, 20), min_size=1, max_size=6))
def test_each_queue_is_first_as_often_as_its_weight_says(weights: dict[str, int]) -> None:
    orders = by_weight(list(weights), weights)
    assert Counter(order[0] for order in orders) == weights
    assert all(sorted(order) == sorted(weights) for order in orders)
