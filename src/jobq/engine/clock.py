"""This machine's clock.

The store's clock decides what is due. This one is used for timestamps of workers, and to tell how
late a schedule is.
"""

from __future__ import annotations

import time


def wall_clock() -> int:
    """Return milliseconds since the epoch."""
    return time.time_ns() // 1_000_000
