"""Numbers and texts as the report shows them. report.js has the same rules for what it draws."""

from __future__ import annotations

from html import escape

from jobq.core.values.printable import one_line


def number(value: float) -> str:
    """A short number: 1234567 → 1.23M."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.3g}{unit}"
    return f"{value:.3g}"


def duration(ms: float) -> str:
    """A short duration from milliseconds: 90000 → 90 s."""
    for limit, unit in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min")):
        if ms >= 2 * limit:
            return f"{ms / limit:.3g} {unit}"
    return f"{ms / 1000:.3g} s" if ms >= 1000 else f"{ms:.3g} ms"


def percent(share: float) -> str:
    """A share as a percentage: 0.9876 → 98.76 %."""
    return f"{share * 100:.4g} %"


def plain(text: object, limit: int = 300) -> str:
    """Text from jobs on one line: without control characters, and not too long."""
    line = one_line(str(text))
    return line if len(line) <= limit else line[: limit - 1] + "…"


def safe(text: object) -> str:
    """The same, escaped for HTML."""
    return escape(plain(text))
