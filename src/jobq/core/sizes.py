"""Sizes in bytes as people write them: 512M, 1.5GB, 64KiB. Units are powers of 1024."""

from __future__ import annotations

import re

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?\s*", re.IGNORECASE)


def parse_size(value: str) -> int:
    """Parse a size into bytes. Raises ValueError if it is no size, or less than a byte."""
    match = _SIZE.fullmatch(value)
    size = 0 if match is None else int(float(match[1]) * _UNITS[match[2].upper()])
    if size < 1:
        raise ValueError(f"{value!r} is not a size: use bytes, or e.g. 512M, 1.5G")
    return size
