"""Times as people read and write them: 90, 500ms, 15m, 1h30m, 7d."""

from __future__ import annotations

import math
import re

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


def shown(ms: float) -> str:
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
