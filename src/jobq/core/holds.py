"""Holds: no job of a queue, or of one key, starts before a given time.

A handler asks for one with `RateLimited`, an operator with `hold`. Of two holds, the later end
counts. Releasing it, resuming the queue, or changing the queue's limits lifts a hold. Changing a
key's limits, or the queue's, lifts the hold of that key. A hold is stored with its length (`ms`),
so that it is late by at most that length if the clock is set back.
"""

from __future__ import annotations

from jobq.errors import ConfigError

MAX_LISTED = 100
"""Held keys that `Queue.limits()` and the command line show: those that end first."""


def end(until_ms: int, ms: int, now_ms: int) -> int:
    """When a hold ends, seen from now.

    If the end is more than `ms` away, the clock was set back, and the hold starts over.
    """
    return min(until_ms, now_ms + ms)


def hold_reason(ms: int, key: str | None) -> str:
    """The reason in the event of a hold."""
    return f"{ms} ms" if key is None else f"{ms} ms, key {key}"


def lifted_reason(key: str | None) -> str | None:
    """The reason in the event of a lifted hold."""
    return None if key is None else f"key {key}"


def no_keys(queue: str) -> ConfigError:
    """The error for a hold on a key of a plain queue."""
    return ConfigError(
        f"queue {queue!r} is plain, so its jobs have no keys: leave out key= to hold the queue"
    )
