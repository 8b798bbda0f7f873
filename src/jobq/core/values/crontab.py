"""Times by cron expression and time zone.

An expression that names hours follows the wall clock: each named time comes once a day, also on
days when the clocks change. A time that falls into the gap comes when the gap ends. Of two times in
an overlap, the first counts. An expression for every hour follows elapsed time, so it neither
pauses nor bunches. cronsim computes calendars; this module handles zones, because cronsim's rule
leaves out six-field expressions and runs `0 */2 * * *` twice in an overlap.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import TYPE_CHECKING

from jobq.core.values.checks import did_you_mean, shown
from jobq.errors import ConfigError

if TYPE_CHECKING:
    from cronsim import CronSim

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND, _DAY = timedelta(seconds=1), timedelta(days=1)
_MAX_LENGTH = 256
"""Characters of an expression."""

_FIELDS = (
    ("second", "0-59"),
    ("minute", "0-59"),
    ("hour", "0-23"),
    ("day of month", "1-31, L or LW"),
    ("month", "1-12 or JAN-DEC"),
    ("day of week", "0-7 or SUN-SAT, with #1-#5 or L"),
)
_ALIASES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}


class _Unreadable(Exception):
    """cronsim cannot read the expression."""


def _calendar(expression: str, after: datetime) -> CronSim:
    """The times of an expression after a wall-clock time, without a zone."""
    from cronsim import CronSim, CronSimError

    try:
        return CronSim(expression, after)
    except CronSimError as e:
        raise _Unreadable from e


# ── reading expressions ───────────────────────────────────────────────────────────────────────────


def check_expression(expression: object) -> str:
    """The expression with single spaces and its alias (`@daily`) expanded.

    ConfigError names the position of a mistake.
    """
    if not isinstance(expression, str):
        raise ConfigError(f"cron {shown(expression)} is not a string")
    if len(expression) > _MAX_LENGTH:
        raise ConfigError(f"cron {shown(expression)} is too long: at most {_MAX_LENGTH} characters")
    plain = _ALIASES.get(expression.strip().lower(), expression)
    try:
        next(_calendar(plain, datetime(2000, 1, 1)))
    except _Unreadable:
        raise ConfigError(f"cron {expression!r}: {_mistake(plain)}") from None
    except (StopIteration, OverflowError):
        raise ConfigError(f"cron {expression!r} never matches a time") from None
    return " ".join(plain.split())


def _mistake(expression: str) -> str:
    fields = _positions(expression)
    if expression.lstrip().startswith("@"):
        near = did_you_mean(expression.strip(), _ALIASES)
        return f"unknown alias at position 0{near}: use one of {', '.join(_ALIASES)}"
    if len(fields) not in (5, 6):
        return (
            f"has {len(fields)} fields: use 5 (minute hour day month weekday), "
            "or 6 with seconds first"
        )
    for index, (name, values) in enumerate(_FIELDS[6 - len(fields) :], 6 - len(fields)):
        start, text = fields[index - 6 + len(fields)]
        if not _reads(index, text):
            offset, term = _first_bad_term(index, text)
            return (
                f"bad {name} {term!r} at position {start + offset}: use {values}, "
                "lists (,), ranges (-) and steps (/)"
            )
    start, text = fields[-3]
    return f"day of month {text!r} at position {start} does not exist in those months"


def _positions(expression: str) -> list[tuple[int, str]]:
    fields, at = [], 0
    for text in expression.split():
        at = expression.index(text, at)
        fields.append((at, text))
        at += len(text)
    return fields


def _first_bad_term(index: int, text: str) -> tuple[int, str]:
    offset = 0
    for term in text.split(","):
        if not _reads(index, term):
            return offset, term
        offset += len(term) + 1
    return 0, text


def _reads(index: int, text: str) -> bool:
    alone = ["*"] * 6
    alone[index] = text
    try:
        _calendar(" ".join(alone) if text else "", datetime(2000, 1, 1))
    except _Unreadable:
        return index == 3 and text.isdigit() and 1 <= int(text) <= 31
    return True


def check_zone(tz: object) -> str:
    """The name of an existing time zone. ConfigError suggests the closest one."""
    if not isinstance(tz, str):
        raise ConfigError(f"tz={shown(tz)} is not the name of a time zone, like 'Europe/Zurich'")
    try:
        _zone(tz)
    except (ValueError, OSError, LookupError):
        from zoneinfo import available_timezones

        raise ConfigError(
            f"tz={shown(tz)} is not a known time zone{did_you_mean(tz, available_timezones())}"
        ) from None
    return str.__str__(tz)  # a plain str, also of a subclass


@lru_cache(maxsize=256)
def _zone(name: str) -> tzinfo:
    if name == "UTC":
        return UTC
    from zoneinfo import ZoneInfo  # with cronsim 5 ms, which only processes with schedules pay

    return ZoneInfo(name)


# ── times ─────────────────────────────────────────────────────────────────────────────────────────


def next_time(expression: str, tz: str, after_ms: int) -> int | None:
    """The first time of a checked expression after `after_ms`. None if there is none."""
    after = _EPOCH + timedelta(milliseconds=after_ms)
    zone = _zone(tz)
    try:
        found = (
            _on_the_wall(expression, zone, after)
            if _names_hours(expression)
            else _elapsed(expression, zone, after)
        )
    except (StopIteration, OverflowError):  # nothing within 50 years, or only after the year 9999
        return None
    return (found - _EPOCH) // timedelta(milliseconds=1)


@lru_cache(maxsize=256)
def _names_hours(expression: str) -> bool:
    return len(_calendar(expression, datetime(2000, 1, 1)).hours) < 24


def _on_the_wall(expression: str, zone: tzinfo, after: datetime) -> datetime:
    """The first named wall-clock time after `after`. Each one counts once."""
    walls = _calendar(expression, after.astimezone(zone).replace(tzinfo=None, fold=0))
    while True:
        found = _moment(next(walls), zone)
        if found > after:  # in the second hour of an overlap, the wall shows past times
            return found


def _moment(wall: datetime, zone: tzinfo) -> datetime:
    """When the wall clock first shows this time. For a time in a gap, the end of the gap."""
    moment = wall.replace(tzinfo=zone, fold=0).astimezone(UTC)
    if moment.astimezone(zone).replace(tzinfo=None) == wall:
        return moment
    before = moment - _DAY
    return _next_change(zone, before, moment) or moment


def _elapsed(expression: str, zone: tzinfo, after: datetime) -> datetime:
    """The first moment after `after` whose wall time matches.

    Searches one stretch of constant UTC offset after the other.
    """
    start = after
    while True:
        offset = _offset(zone, start)
        wall = start.replace(tzinfo=None) + offset
        if start is not after:
            wall -= _SECOND  # the moment of the change may match as well
        found = (next(_calendar(expression, wall)) - offset).replace(tzinfo=UTC)
        change = _next_change(zone, start, found)
        if change is None:
            return found
        start = change


def _offset(zone: tzinfo, moment: datetime) -> timedelta:
    return moment.astimezone(zone).utcoffset() or timedelta()


def _next_change(zone: tzinfo, start: datetime, end: datetime) -> datetime | None:
    """The first moment after `start`, up to `end`, when the zone's offset changes.

    No zone changes twice in a day.
    """
    if zone is UTC:
        return None
    offset, low = _offset(zone, start), start
    while low < end:
        high = min(low + _DAY, end)
        if _offset(zone, high) != offset:
            return _bisect(zone, offset, low, high)
        low = high
    return None


def _bisect(zone: tzinfo, offset: timedelta, low: datetime, high: datetime) -> datetime:
    low = low.replace(microsecond=0)
    while high - low > _SECOND:
        middle = (low + (high - low) / 2).replace(microsecond=0)
        if _offset(zone, middle) == offset:
            low = middle
        else:
            high = middle
    return high
