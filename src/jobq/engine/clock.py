"""This machine's clock. What is due, its store's clock decides; here it only tells how late something is."""

from __future__ import annotations

import time


def wall_clock() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000
