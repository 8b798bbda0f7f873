"""Ids that a producer makes: 26 characters, ordered by time, and from one maker in the order they were made.

Ten characters of milliseconds, eight of a counter, eight of chance that tells makers apart. Crockford's alphabet in lower
case, whose order as text is that of its digits. `client/ids.py` has the process's own maker, with its clock and chance.
"""

from __future__ import annotations

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_PAIRS = [a + b for a in _ALPHABET for b in _ALPHABET]

CHANCE_BITS = 40
COUNTER_BITS = 40


def _text(number: int, pairs: int) -> str:
    return "".join(_PAIRS[number >> 10 * n & 1023] for n in reversed(range(pairs)))


class IdMaker:
    """Makes ids from the time it is told. A clock set back does not set the order back. Not safe among threads."""

    __slots__ = ("_at_ms", "_count", "_stem", "_tails")

    def __init__(self, *, chance: int, count: int = 0) -> None:
        self._at_ms = -1
        self._count = count
        self._stem = ""
        tail = _text(chance, 4)
        self._tails = [pair + tail for pair in _PAIRS]

    def next(self, at_ms: int) -> str:
        """A new id."""
        self._count = count = self._count + 1
        low = count & 1023
        if (
            at_ms > self._at_ms or low == 0
        ):  # most ids share all but two characters with the one before
            self._at_ms = max(at_ms, self._at_ms)
            self._stem = _text(self._at_ms, 5) + _text(count >> 10, 3)
        return self._stem + self._tails[low]
