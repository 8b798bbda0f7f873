"""Ids that a producer makes: 26 characters, ordered by time, and within a process in the order they were made.

Ten characters of milliseconds, eight of a counter that starts at random, eight of chance drawn per process. Crockford's
alphabet in lower case, whose order is that of its digits. The one clock read in `core`: nothing is decided by it.
"""

from __future__ import annotations

import os
import threading
import time

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_PAIRS = [a + b for a in _ALPHABET for b in _ALPHABET]


def _text(number: int, pairs: int) -> str:
    return "".join(_PAIRS[number >> 10 * n & 1023] for n in reversed(range(pairs)))


class IdMaker:
    """Makes ids. Safe among threads; a clock set back does not set the order back."""

    __slots__ = ("_at", "_count", "_lock", "_stem", "_tail")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._at = 0
        self._stem = ""
        self._tail = _text(int.from_bytes(os.urandom(5)), 4)
        self._count = int.from_bytes(os.urandom(4))

    def __call__(self) -> str:
        """The next id."""
        at = time.time_ns() // 1_000_000
        with self._lock:
            self._count = count = self._count + 1
            low = count & 0xFFFFF
            if at > self._at or low == 0:
                self._at = max(at, self._at)
                self._stem = _text(self._at, 5) + _text(count >> 20, 2)
            return self._stem + _PAIRS[low >> 10] + _PAIRS[low & 1023] + self._tail


new_id = IdMaker()
"""A new id."""


def _begin_anew() -> None:
    # A forked child would go on with its parent's counter and chance. Same object: others hold `new_id` by name.
    new_id.__init__()  # type: ignore[misc]


os.register_at_fork(after_in_child=_begin_anew)
