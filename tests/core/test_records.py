"""What the names in records mean."""

from __future__ import annotations

import pytest

from jobq.core.records.jobs import lane_of

CALLS = [("x", 0), ("ab12-7", 0), ("ab12-7/1", 1), ("a/b/12", 12), ("a/", 0), ("a/b", 0), ("", 0)]


@pytest.mark.parametrize(("call", "lane"), CALLS)
def test_the_name_of_a_call_may_tell_its_lane(call: str, lane: int) -> None:
    assert lane_of(call) == lane
