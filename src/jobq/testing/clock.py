"""A clock for tests."""

from __future__ import annotations

from datetime import UTC, datetime

from jobq.core.values.checks import Seconds, to_epoch_ms, to_ms
from jobq.core.values.units import moment
from jobq.errors import ConfigError


class FakeClock:
    """A clock that stands still until you move it."""

    def __init__(self, start: datetime | None = None) -> None:
        self._ms = to_epoch_ms(start or datetime.now(UTC), "start")

    def __call__(self) -> int:
        """The time in milliseconds since the epoch, as stores read it."""
        return self._ms

    def now(self) -> datetime:
        """The current time of this clock."""
        return moment(self._ms)

    def advance(self, by: Seconds) -> datetime:
        """Move the clock forward. This runs no jobs: `drain()` runs those that have become due."""
        self._ms += to_ms(by, "by")
        return self.now()

    def advance_to(self, at: datetime) -> datetime:
        """Move the clock forward to a time, which must have a time zone. ConfigError if the time
        has passed: the time of a store never goes back."""
        ms = to_epoch_ms(at, "at")
        if ms < self._ms:
            raise ConfigError(f"advance_to: {at} is before {self.now()}, the time of the clock")
        self._ms = ms
        return self.now()
