"""How often each worker of a fleet polls, sends heartbeats and asks to lead.

In a fleet of more than 100 workers, each worker does these things less often: a thousand workers
that poll twice a minute already poll 30 times a second together.
"""

from __future__ import annotations

_SMALL_FLEET = 100
_MAX_STRETCH = 6.0


def stretch(workers: int) -> float:
    """The factor by which intervals grow: 1 for up to 100 workers, 6 from 600 workers on."""
    return min(_MAX_STRETCH, max(1.0, workers / _SMALL_FLEET))


class Pace:
    """What a worker knows about its fleet. Every beat sets it, and the worker's loops read it."""

    stretch = 1.0

    def heard(self, workers: int) -> None:
        """Set the approximate number of workers."""
        self.stretch = stretch(workers)
