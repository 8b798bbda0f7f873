"""Sizes in bytes: as people write them (512M, 1.5GB, 64KiB), and as they read them (4.2 kB)."""

from __future__ import annotations

import re

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
