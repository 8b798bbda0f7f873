"""Sizes as people read them."""

from __future__ import annotations

from jobq.core.sizes import shown_size


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
