"""How long a starting worker waits for a store that is unavailable."""

from __future__ import annotations

import time

from jobq.engine.service import Outage


class StorePatience(Outage):
    """When to try the store again, and when to give up. `seconds` None: never give up."""

    def __init__(self, what: str, seconds: float | None) -> None:
        # First retry after 0.1 s, later ones at most 2 s apart: a store that restarts is back soon.
        super().__init__(what, base=0.1, cap=2.0)
        self._until = None if seconds is None else time.monotonic() + seconds

    def failed(self, error: BaseException) -> float:
        """Seconds until the next try. Raises the error if the time is over."""
        if self._until is None:
            return super().failed(error)
        left = self._until - time.monotonic()
        if left <= 0:
            raise error
        return min(left, super().failed(error))
