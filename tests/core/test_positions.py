"""Positions in an event log: one form on every store."""

from __future__ import annotations

import pytest

from jobq.core.records.event_log import joined, offsets, passed
from jobq.errors import InvalidJob


@pytest.mark.parametrize(
    ("position", "each"),
    [
        ("0", ["0"]),
        ("17", ["17"]),
        ("1700-3", ["1700-3"]),
        ("1-0,0,2-5", ["1-0", "0", "2-5"]),
        ("0", ["0", "0"]),
    ],
)
def test_a_position_has_a_place_in_every_shard(position: str, each: list[str]) -> None:
    assert offsets(position, len(each)) == each
    assert joined(each) == position or position == "0"


@pytest.mark.parametrize(
    ("position", "shards"),
    [("", 1), ("1", 2), ("1,2", 1), ("1,", 2), ("[1]", 1), ("-1", 1), ("1-2-3", 1)],
)
def test_anything_else_is_refused(position: str, shards: int) -> None:
    with pytest.raises(InvalidJob, match="not a position"):
        offsets(position, shards)


@pytest.mark.parametrize(
    ("position", "end", "there"),
    [
        ("9", "10", False),
        ("10", "10", True),
        ("1700-10", "1700-9", True),
        ("1700-9", "1701-0", False),
        ("5,0", "5,0", True),
        ("5,0", "4,1", False),
        ("5,1", "0", True),
        ("0", "5,1", False),
    ],
)
def test_a_position_is_past_another_when_every_shard_is(
    position: str, end: str, there: bool
) -> None:
    assert passed(position, end) is there
