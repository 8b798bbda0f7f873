"""Times by cron expression, also on the days the clocks change."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from hypothesis import given, settings
from hypothesis import strategies as st

from jobq.core.values.crontab import check_expression, check_zone, next_time
from jobq.errors import ConfigError

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def ms(moment: datetime) -> int:
    return (moment - EPOCH) // timedelta(milliseconds=1)


def times(expression: str, tz: str, start: str, count: int) -> list[str]:
    """The next times as the wall clock shows them, with their offsets."""
    zone = ZoneInfo(tz)
    at: int | None = ms(datetime.fromisoformat(start).replace(tzinfo=zone))
    shown = []
    for _ in range(count):
        assert at is not None
        at = next_time(expression, tz, at)
        assert at is not None
        shown.append(
            (EPOCH + timedelta(milliseconds=at)).astimezone(zone).isoformat(timespec="minutes")
        )
    return shown


def test_a_time_in_the_gap_comes_once_when_the_gap_ends() -> None:
    assert times("30 2 * * *", "Europe/Zurich", "2026-03-28T12:00", 2) == [
        "2026-03-29T03:00+02:00",
        "2026-03-30T02:30+02:00",
    ]


def test_several_times_in_the_gap_come_as_one() -> None:
    assert times("0,20,40 2 * * *", "Europe/Zurich", "2026-03-29T00:00", 2) == [
        "2026-03-29T03:00+02:00",
        "2026-03-30T02:00+02:00",
    ]


def test_a_time_in_the_gap_and_the_one_at_its_end_come_as_one() -> None:
    assert times("0 2,3 * * *", "Europe/Zurich", "2026-03-29T00:00", 2) == [
        "2026-03-29T03:00+02:00",
        "2026-03-30T02:00+02:00",
    ]


def test_a_time_in_the_overlap_comes_once() -> None:
    assert times("30 2 * * *", "Europe/Zurich", "2026-10-24T12:00", 2) == [
        "2026-10-25T02:30+02:00",
        "2026-10-26T02:30+01:00",
    ]


def test_asked_in_the_second_hour_of_the_overlap_what_has_been_does_not_come_again() -> None:
    second = ms(datetime(2026, 10, 25, 2, 10, tzinfo=ZoneInfo("Europe/Zurich"), fold=1))
    assert next_time("30 2 * * *", "Europe/Zurich", second) == ms(
        datetime(2026, 10, 26, 1, 30, tzinfo=UTC)
    )


def test_seconds_change_nothing_about_it() -> None:
    assert times("0 30 2 * * *", "Europe/Zurich", "2026-03-28T12:00", 1) == [
        "2026-03-29T03:00+02:00"
    ]
    assert times("0 30 2 * * *", "Europe/Zurich", "2026-10-24T12:00", 2) == [
        "2026-10-25T02:30+02:00",
        "2026-10-26T02:30+01:00",
    ]


def test_every_second_hour_goes_by_the_wall_clock() -> None:
    assert times("0 */2 * * *", "Europe/Zurich", "2026-10-25T01:00", 2) == [
        "2026-10-25T02:00+02:00",
        "2026-10-25T04:00+01:00",
    ]


def test_every_half_hour_goes_by_elapsed_time() -> None:
    assert times("*/30 * * * *", "Europe/Zurich", "2026-10-25T02:00", 4) == [
        "2026-10-25T02:30+02:00",
        "2026-10-25T02:00+01:00",
        "2026-10-25T02:30+01:00",
        "2026-10-25T03:00+01:00",
    ]
    assert times("*/30 * * * *", "Europe/Zurich", "2026-03-29T01:00", 2) == [
        "2026-03-29T01:30+01:00",
        "2026-03-29T03:00+02:00",
    ]


def test_a_midnight_that_does_not_exist_comes_when_the_day_begins() -> None:
    assert times("0 0 * * *", "America/Santiago", "2026-09-05T12:00", 2) == [
        "2026-09-06T01:00-03:00",
        "2026-09-07T00:00-03:00",
    ]


def test_a_day_that_does_not_exist_is_made_up_for_when_the_next_begins() -> None:
    # Samoa crossed the date line: 30 December 2011 never was.
    assert times("0 9 30 12 *", "Pacific/Apia", "2011-12-29T12:00", 1) == ["2011-12-31T00:00+14:00"]


def test_half_an_hour_of_daylight_saving_is_no_trouble() -> None:
    assert times("*/20 * * * *", "Australia/Lord_Howe", "2026-04-05T01:20", 4) == [
        "2026-04-05T01:40+11:00",
        "2026-04-05T01:40+10:30",
        "2026-04-05T02:00+10:30",
        "2026-04-05T02:20+10:30",
    ]


def test_the_last_day_of_february_comes_in_leap_years() -> None:
    assert times("0 0 29 2 *", "UTC", "2026-01-01T00:00", 2) == [
        "2028-02-29T00:00+00:00",
        "2032-02-29T00:00+00:00",
    ]


def test_after_the_last_year_there_is_no_next_time() -> None:
    assert next_time("0 0 1 1 *", "UTC", ms(datetime(9999, 6, 1, tzinfo=UTC))) is None


# ── properties ────────────────────────────────────────────────────────────────────────────────────

ZONES = [
    "UTC",
    "Europe/Zurich",
    "America/New_York",
    "America/Santiago",
    "Australia/Lord_Howe",
    "Asia/Kolkata",
    "Africa/Casablanca",
    "Pacific/Apia",
    "America/St_Johns",
    "Antarctica/Troll",
]


def field(low: int, high: int) -> st.SearchStrategy[str]:
    number = st.integers(low, high)
    ranges = st.tuples(number, number).map(lambda ends: f"{min(ends)}-{max(ends)}")
    return st.one_of(
        st.just("*"),
        st.integers(2, 30).map(lambda step: f"*/{step}"),
        st.lists(number.map(str) | ranges, min_size=1, max_size=3).map(",".join),
    )


expressions = st.tuples(
    field(0, 59),
    field(0, 23),
    st.just("*") | field(1, 28),
    st.just("*"),
    st.just("*") | field(0, 6),
).map(" ".join)
# Around the changes of 2026, and anywhere.
moments = st.one_of(
    st.datetimes(datetime(2026, 3, 7), datetime(2026, 3, 30)),
    st.datetimes(datetime(2026, 9, 5), datetime(2026, 11, 2)),
    st.datetimes(datetime(2000, 1, 1), datetime(2037, 1, 1)),
).map(lambda naive: ms(naive.replace(tzinfo=UTC)))


@given(expressions, st.sampled_from(ZONES), moments)
def test_the_next_time_is_later_and_nothing_lies_between(
    expression: str, tz: str, after: int
) -> None:
    found = next_time(expression, tz, after)
    assert found is not None
    assert found > after
    assert next_time(expression, tz, found - 1) == found
    assert next_time(expression, tz, (after + found) // 2) in (
        found,
        next_time(expression, tz, found),
    )


@given(expressions, st.sampled_from(ZONES), moments, st.integers(0, 10**9))
def test_asking_later_never_gives_an_earlier_time(
    expression: str, tz: str, after: int, more: int
) -> None:
    first, second = next_time(expression, tz, after), next_time(expression, tz, after + more)
    assert first is not None
    assert second is not None
    assert first <= second


@settings(max_examples=50)
@given(field(0, 59), st.sampled_from(ZONES), moments)
def test_schedules_of_every_hour_match_each_minute_that_passes(
    minute: str, tz: str, after: int
) -> None:
    zone, expression = ZoneInfo(tz), f"{minute} * * * *"
    minutes = CronSim(expression, datetime(2000, 1, 1)).minutes
    moment = EPOCH + timedelta(minutes=after // 60_000 + 1)
    while moment.astimezone(zone).minute not in minutes or moment.astimezone(zone).second:
        moment += timedelta(minutes=1)
    assert next_time(expression, tz, after) == ms(moment)


@settings(max_examples=50)
@given(st.integers(0, 59), st.integers(0, 23), st.sampled_from(ZONES), st.integers(2013, 2036))
def test_a_daily_job_comes_once_a_day_all_year(minute: int, hour: int, tz: str, year: int) -> None:
    zone = ZoneInfo(tz)
    at: int | None = ms(datetime(year, 1, 1, tzinfo=UTC))
    days = []
    for _ in range(365):
        assert at is not None
        at = next_time(f"{minute} {hour} * * *", tz, at)
        assert at is not None
        days.append((EPOCH + timedelta(milliseconds=at)).astimezone(zone).date())
    assert days == [days[0] + timedelta(days=n) for n in range(365)]


# ── mistakes ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("0 25 * * *", "bad hour '25' at position 2"),
        ("*/0 * * * *", r"bad minute '\*/0' at position 0"),
        ("0 0 1,32 * *", "bad day of month '32' at position 6"),
        ("0 0 * 13 *", "bad month '13' at position 6"),
        ("0  0   * * MOM", "bad day of week 'MOM' at position 11"),
        ("0 0,,2 * * *", "bad hour '' at position 4"),
        ("61 0 0 * * *", "bad second '61' at position 0"),
        ("0 5-3 * * *", "bad hour '5-3' at position 2"),
        ("0 0 30 2 *", "day of month '30' at position 4 does not exist"),
        ("  0 0 31 2,4 *", "day of month '31' at position 6 does not exist"),
        ("0 0 31 * MON,9", "bad day of week '9' at position 13"),
        ("* * * *", "has 4 fields"),
        ("", "has 0 fields"),
        ("1 2 3 4 5 6 7", "has 7 fields"),
        ("@dayly", "unknown alias at position 0.*did you mean '@daily'"),
        ("x" * 1000, "too long"),
        (None, "is not a string"),
    ],
)
def test_a_mistake_is_refused_with_its_position(expression: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_expression(expression)


@given(st.text(alphabet="0123456789*/,-LW#MONJA @", max_size=25))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        read = check_expression(text)
    except ConfigError:
        return
    assert next_time(read, "Europe/Zurich", 0) is not None


def test_aliases_and_spaces_are_written_out() -> None:
    assert check_expression("@Weekly") == "0 0 * * 0"
    assert check_expression("  0   6 * *  mon ") == "0 6 * * mon"


@pytest.mark.parametrize(
    "tz", ["", "Europe", "../etc/passwd", "/etc/passwd", "Mars/Olympus", None, 7]
)
def test_a_zone_there_is_not_is_refused(tz: str) -> None:
    with pytest.raises(ConfigError, match="tz="):
        check_zone(tz)


def test_the_nearest_zone_is_named() -> None:
    with pytest.raises(ConfigError, match="did you mean 'Europe/Zurich'"):
        check_zone("Europe/Zurick")
