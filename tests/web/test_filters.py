"""How figures, times and users' texts look on the dashboard."""

from __future__ import annotations

import pytest

from jobq.web import render


@pytest.mark.parametrize(
    ("gap_ms", "text"),
    [
        (0, "now"),
        (499, "now"),
        (1_400, "1s ago"),
        (59_400, "59s ago"),
        (61_000, "1m01s ago"),
        (7_200_000, "2h ago"),
        (-20_000, "in 20s"),
    ],
)
def test_a_time_is_shown_relative_to_now_in_whole_seconds(gap_ms: int, text: str) -> None:
    now = 1_700_000_000_000
    assert render.ago(now - gap_ms, now) == text


def test_rates_have_a_decimal_only_where_it_says_something() -> None:
    assert [render.rate(value) for value in (0, 0.42, 9.94, 9.96, 1234.5)] == [
        "0",
        "0.4",
        "9.9",
        "10",
        "1,234",
    ]


def test_a_long_name_keeps_its_beginning_and_its_end() -> None:
    shown = render.short("a" * 300 + "end", 30)
    assert len(shown) == 30
    assert shown.startswith("aaa")
    assert shown.endswith("end")


def test_marks_that_reorder_text_and_line_breaks_are_escaped() -> None:
    shown = render.short("order\u202e7\nnext")
    assert "\u202e" not in shown
    assert "\n" not in shown


def test_a_sparkline_stays_inside_its_box_and_shows_every_failure() -> None:
    points = [tuple(map(float, each.split(","))) for each in render.spark_line([0, 5, 10]).split()]
    assert [x for x, _ in points] == [0, 60, 120]
    assert all(0 <= y <= render.HEIGHT for _, y in points)
    bars = render.spark_bars([0, 1, 0, 0], top=1_000_000)
    assert len(bars) == 1
    assert float(bars[0]["height"]) >= 2  # one failure among a million is seen
    assert render.spark_line([0, 0, 0]) == ""


def test_a_sparkline_is_also_told_in_words() -> None:
    assert render.trend([0, 0], [0, 0]) == "nothing ended in the last hour"
    assert render.trend([1, 9], [0, 2]) == ("10 completed and 2 failed in the last hour, rising")


def test_a_live_chart_does_not_end_with_a_fall_that_has_not_happened() -> None:
    assert render.per_minute([60, 60, 30], 30_000) == [60, 60, 60]
    assert render.per_minute([60, 60, 1], 2_000) == [60, 60, None]  # too early to tell
    assert render.per_minute([60, 60, 60], 60_000) == [60, 60, 60]
