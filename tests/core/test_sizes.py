"""Sizes as people write and read them."""

from __future__ import annotations

import pytest

from jobq.core.values.units import parse_size, shown_size


def test_sizes_change_their_unit_before_they_have_four_digits() -> None:
    sizes = (0, 999, 1_000, 99_950, 999_400, 999_600, 3_145_728, 5e15)
    assert [shown_size(value) for value in sizes] == [
        "0 B",
        "999 B",
        "1.0 kB",
        "100.0 kB",
        "999 kB",
        "1.0 MB",
        "3.1 MB",
        "5,000.0 TB",
    ]


@pytest.mark.parametrize("value", ["", "big", "0", "0.4", "-1", "1e3", "9" * 400, "99999999T"])
def test_what_is_no_size_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        parse_size(value)


def test_sizes_are_read_as_people_write_them() -> None:
    assert [parse_size(value) for value in ("1", "64KiB", "1.5g", " 2 TB ")] == [
        1,
        65_536,
        1_610_612_736,
        2_199_023_255_552,
    ]
