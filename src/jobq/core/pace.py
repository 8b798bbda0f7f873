"""How often each of a fleet does what any of it could do: looking for work that no signal told of, asking for an office.

A small fleet does it promptly. In a large one the duty is shared: a thousand workers that each look twice a minute look
thirty times a second between them, and the store has its time for jobs.
"""

from __future__ import annotations

_SMALL_FLEET = 100
_MAX_STRETCH = 6.0


def stretch(workers: int) -> float:
    """By how much the intervals of each grow in a fleet of so many: 1 up to a hundred workers, 6 from six hundred on."""
    return min(_MAX_STRETCH, max(1.0, workers / _SMALL_FLEET))


class Pace:
    """What a worker knows of its fleet: set with every beat, read by its loops."""

    stretch = 1.0

    def heard(self, workers: int) -> None:
        """There are about so many."""
        self.stretch = stretch(workers)
