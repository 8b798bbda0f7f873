"""Parsing and formatting of values."""

from __future__ import annotations

import pytest

from jobq.cli import text
from jobq.core.values.units import parse_duration


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("90", 90),
        ("1.5", 1.5),
        ("500ms", 0.5),
        ("90s", 90),
        ("15m", 900),
        ("1h30m", 5400),
        ("7d", 604800),
        ("0", 0),
    ],
)
def test_a_duration_is_parsed(written: str, seconds: float) -> None:
    assert parse_duration(written) == seconds


@pytest.mark.parametrize(
    "written", ["", "soon", "5 minutes", "5x", "-1", "1h-2m", "nan", "inf", "m5"]
)
def test_an_invalid_duration_is_quoted_in_the_error(written: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration(written)


@pytest.mark.parametrize(
    ("ms", "written"),
    [
        (None, "-"),
        (0, "0ms"),
        (340, "340ms"),
        (9400, "9.4s"),
        (45_000, "45s"),
        (245_000, "4m05s"),
        (11_520_000, "3h12m"),
        (439_200_000, "5d02h"),
    ],
)
def test_a_duration_is_formatted_in_at_most_two_units(ms: int | None, written: str) -> None:
    assert text.duration(ms) == written


def test_a_time_is_shown_relative_to_now() -> None:
    assert text.relative(1000, 61_000) == "1m ago"
    assert text.relative(61_000, 1000) == "in 1m"


def test_line_breaks_and_terminal_escapes_do_not_reach_the_terminal() -> None:
    assert text.clean("one\ntwo \x1b[31mred\x07") == "one two [31mred"
    assert text.clean_lines("one\n\x1b[2Jtwo") == "one\n�[2Jtwo"


def test_the_sparkline_is_scaled_to_the_highest_value() -> None:
    assert text.sparkline([0, 1, 2]) == "▁▄█"
    assert text.sparkline([0, 0]) == "▁▁"
