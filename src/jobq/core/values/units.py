"""Times, durations and sizes as people read and write them: 1h30m, 512M, 4.2 kB."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta

_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 7 * 86_400_000}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")


def parse_duration(value: str) -> float:
    """Parse `90`, `1.5`, `500ms`, `15m`, `1h30m` or `7d` into seconds. Raises ValueError."""
    try:
        seconds = float(value)
    except ValueError:
        parts = _PART.findall(value)
        if not parts or "".join(n + unit for n, unit in parts) != value:
            raise ValueError(
                f"{value!r} is not a duration: use seconds, or e.g. 500ms, 90s, 15m, 1h30m, 7d"
            ) from None
        seconds = sum(float(n) * _UNITS_MS[unit] for n, unit in parts) / 1000
    if not 0 <= seconds < 1e10:
        raise ValueError(f"{value!r} is not a duration: it must be finite and not negative")
    return seconds


def duration_text(ms: float) -> str:
    """A rounded duration in at most two units: `340ms`, `12s`, `4m05s`, `3h12m`, `5d`."""
    if ms < 1000:
        return f"{ms:.0f}ms"
    seconds = ms / 1000
    if seconds < 60:
        return f"{seconds:.1f}s" if seconds < 10 else f"{seconds:.0f}s"
    for unit, size, small, part, limit in (
        ("m", 60, "s", 1, 3600),
        ("h", 3600, "m", 60, 86400),
        ("d", 86400, "h", 3600, math.inf),
    ):
        if seconds < limit:
            rest = int(seconds % size // part)
            return f"{int(seconds // size)}{unit}" + (f"{rest:02d}{small}" if rest else "")
    raise AssertionError("unreachable: every duration is below infinity")


# Milliseconds since the epoch as aware datetimes, for people.

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def moment(ms: int) -> datetime:
    """Milliseconds since the epoch as an aware datetime, exactly."""
    return _EPOCH + timedelta(milliseconds=ms)


def moment_or_none(ms: int | None) -> datetime | None:
    """The same for a time that may be None."""
    return None if ms is None else moment(ms)


# Sizes in bytes: as people write them (512M, 1.5GB, 64KiB), and as they read them (4.2 kB).

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_TOO_LARGE = 2**63
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?\s*", re.IGNORECASE)


def parse_size(value: str) -> int:
    """Parse a size into bytes; units are powers of 1024.

    Raises ValueError if it is no size, less than a byte, or more than any machine has."""
    match = _SIZE.fullmatch(value)
    size = 0 if match is None else float(match[1]) * _UNITS[match[2].upper()]
    if not 1 <= size < _TOO_LARGE:
        raise ValueError(f"{value[:40]!r} is not a size: use bytes, or e.g. 512M, 1.5G")
    return int(size)


def shown_size(count: float) -> str:
    """A number of bytes: `340 B`, `4.2 kB`, `3.1 MB`. Units are powers of 1000."""
    if count < 1000:
        return f"{count:.0f} B"
    for unit, scale in (("kB", 1e3), ("MB", 1e6), ("GB", 1e9)):
        if count < scale * 999.5:
            value = count / scale
            return f"{value:.1f} {unit}" if value < 100 else f"{value:.0f} {unit}"
    return f"{count / 1e12:,.1f} TB"
