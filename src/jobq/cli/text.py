"""Formatting values for a terminal: ages, durations, counts, states. Nothing here prints."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from datetime import UTC, datetime

from rich.text import Text

from jobq.core.records.states import State
from jobq.core.values import units

STATE_STYLES: dict[State, str] = {
    State.DELAYED: "blue",
    State.BLOCKED: "magenta",
    State.WAITING: "cyan",
    State.ACTIVE: "yellow",
    State.COMPLETED: "green",
    State.FAILED: "red",
    State.CANCELLED: "bright_black",
}

_SPARKS = "▁▂▃▄▅▆▇█"


def clean(value: object) -> str:
    """Make a user's text safe to print on one line: no line breaks, no terminal escapes."""
    return " ".join(
        "".join(c if unicodedata.category(c)[0] != "C" else " " for c in str(value)).split()
    )


def clean_lines(value: str) -> str:
    """Like `clean`, but keeps line breaks and tabs, for tracebacks and log lines."""
    return "".join(c if c in "\n\t" or unicodedata.category(c)[0] != "C" else "�" for c in value)


def duration(ms: float | None) -> str:
    """A rounded duration in at most two units: `340ms`, `12s`, `4m05s`, `3h12m`, `5d`."""
    return "-" if ms is None else units.duration_text(ms)


def relative(at_ms: int | None, now_ms: int) -> str:
    """A time relative to now: `3m12s ago`, `in 20s`."""
    if at_ms is None:
        return "-"
    return (
        f"{duration(now_ms - at_ms)} ago" if at_ms <= now_ms else f"in {duration(at_ms - now_ms)}"
    )


def iso(at_ms: int | None) -> str | None:
    """A time as in documents: ISO 8601 in UTC, with milliseconds."""
    if at_ms is None:
        return None
    return (
        datetime.fromtimestamp(at_ms / 1000, UTC)
        .isoformat(timespec="milliseconds")
        .replace("+00:00", "Z")
    )


def clock(at_ms: int) -> str:
    """The local time of day, with milliseconds."""
    return datetime.fromtimestamp(at_ms / 1000).strftime("%H:%M:%S.%f")[:-3]


def state(value: State) -> Text:
    """A state in its colour."""
    return Text(value.value, style=STATE_STYLES[value])


def count(value: int, style: str = "") -> Text:
    """A number with thousands separators. Zero is grey."""
    return Text(f"{value:,}", style=style) if value else Text("0", style="bright_black")


def plural(n: int, noun: str) -> str:
    """`1 job`, `2,000 jobs`."""
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def sparkline(values: Sequence[float]) -> str:
    """Draw the values as a row of bars, scaled to the highest."""
    top = max(values, default=0)
    if not top:
        return _SPARKS[0] * len(values)
    return "".join(_SPARKS[min(7, int(v / top * 7.999))] for v in values)
