"""Ids that a producer makes: 26 characters, ordered by time.

Ids of one maker are in the order they were made. Ten characters encode milliseconds, eight a
counter, and eight are random to tell makers apart. The alphabet is Crockford's in lower case, so
that text order is number order. `client/ids.py` has the process's maker, with its clock and random
number.
"""

from __future__ import annotations

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_PAIRS = [a + b for a in _ALPHABET for b in _ALPHABET]

CHANCE_BITS = 40


def _text(number: int, pairs: int) -> str:
    return "".join(_PAIRS[number >> 10 * n & 1023] for n in reversed(range(pairs)))


class IdMaker:
    """Makes ids from the time it is given. A clock that is set back does not change their order.

    Not safe to share between threads.
    """

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
        # Most ids share all but two characters with the one before.
        if at_ms > self._at_ms or low == 0:
            self._at_ms = max(at_ms, self._at_ms)
            self._stem = _text(self._at_ms, 5) + _text(count >> 10, 3)
        return self._stem + self._tails[low]
