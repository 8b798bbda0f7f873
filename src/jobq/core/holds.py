"""Holds: nothing of a queue, or of one key, starts before a time. Handlers ask for one with `RateLimited`, operators with `hold`.

Of two holds the later end stays. Releasing it, resuming the queue and changing its limits lift a hold; for a key, changing that
key's limits, or the queue's, does. A hold is kept with the time it was asked for (`ms`), so that a clock that was set back
makes it late by that time at most.
"""

from __future__ import annotations

from jobq.errors import ConfigError

MAX_LISTED = 100
"""Held keys that `Queue.limits()` and the command line show, those that end first."""


def end(until_ms: int, ms: int, now_ms: int) -> int:
    """When a hold ends, seen from now. More than `ms` away, the clock was set back since: the hold begins again."""
    return min(until_ms, now_ms + ms)


def hold_reason(ms: int, key: str | None) -> str:
    """What the event of a hold says of it."""
    return f"{ms} ms" if key is None else f"{ms} ms, key {key}"


def lifted_reason(key: str | None) -> str | None:
    """What the event of a lifted hold says of it."""
    return None if key is None else f"key {key}"


def no_keys(queue: str) -> ConfigError:
    """Why a key of a plain queue cannot be held."""
    return ConfigError(
        f"queue {queue!r} is plain: its jobs have no keys to hold; hold the queue, without key="
    )
