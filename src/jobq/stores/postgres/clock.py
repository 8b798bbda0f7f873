"""The time of a store: the server's clock, which never goes back (core/rules/clock.py).

A handle knows how far its own clock is from the server's, which it reads again every `REFRESH_S`.
So a call needs no round trip to know the time, and clients whose clocks are wrong agree with each
other. Each reading says that the difference is inside an interval, as long as the round trip. The
handle keeps the part that all readings have in common, which is far shorter, and uses its lower
end: its time is never ahead of the server's.

The server's clock may be set between two readings, and handles would learn of it one after the
other. So whatever continues the life of a job takes its time from the server while the job or its
queue is locked: the reply to the lock has it (`time_of_reply`). This time is not earlier than any
other that was used for the job before, and a handle that sees a difference reads the clock again
with its next call. If the clock was set back, each handle continues at the speed of its own
machine, so all have the same time.

`meta` has the latest time, for handles that open later: a tick stores it once per `SAVED_MS`, and
any write stores it when the server's clock was set back. A reading includes the end of the log, in
case nobody has stored a later time.
"""

from __future__ import annotations

import threading
import time
from math import inf

import msgspec

from jobq.core.rules.clock import Anchor, steady
from jobq.stores.base import Clock

REFRESH_S = 30.0
"""Seconds between two readings of the server's clock. Clocks of machines drift by less than 1 ms in
this time."""
READINGS = 4
"""Looks of a new handle. The shortest of a few round trips is rarely disturbed."""
DRIFT = 20e-6
"""Seconds per second by which two clocks may drift apart."""
DOUBT_S = 1.0
"""Seconds between two readings because another handle has used a later time. If one does not
explain it, the time came with a job from another store."""
SAVED_MS = 10_000
"""Milliseconds between two times that are stored. If the clock is set back while no handle is open,
the loss is at most this much."""

_BOOT = getattr(time, "CLOCK_BOOTTIME", None)


def elapsed() -> float:
    """Seconds that have passed on this machine, also while it was suspended where that is known."""
    return time.monotonic() if _BOOT is None else time.clock_gettime(_BOOT)


class StoreClock:
    """Reads the clock for a handle, and remembers the latest time. Any thread may use it."""

    def __init__(self, clock: Clock | None) -> None:
        """`clock` replaces the server's clock."""
        self._clock = clock
        self.injected = clock is not None
        # Seconds: the server's time minus this machine's `elapsed`, and where it can be.
        self._offset, self._low, self._high = 0.0, -inf, inf
        self._readings = 0
        self._read_at = 0.0
        self._doubted_at = -inf
        self._seen_ms = self._saved_ms = 0
        self._anchor: Anchor | None = None
        self._saved_anchor: Anchor | None = None
        self._lock = threading.Lock()

    def stale(self) -> bool:
        """Whether it is time to read the server's clock again."""
        return self._readings < READINGS or elapsed() - self._read_at >= REFRESH_S

    def doubtful(self) -> bool:
        """Another handle has used a later time. Returns whether the next call reads again."""
        now = elapsed()
        if now - self._doubted_at < DOUBT_S:
            return False
        self._doubted_at, self._readings = now, 0
        return True

    def observe(
        self, server_s: float, sent: float, received: float, saved: str | None, latest: int | None
    ) -> None:
        """The server's time, when the question was sent and its reply received (by `elapsed`), what
        `meta` has stored, and the latest time in the event log.
        """
        with self._lock:
            self._learn(server_s, sent, received)
            self._readings += 1
            self._read_at = received
            self._seen_ms = max(self._seen_ms, latest or 0)
            if saved is not None:
                saved_ms, anchor = msgspec.json.decode(saved, type=tuple[int, Anchor | None])
                self._seen_ms, self._saved_ms = max(self._seen_ms, saved_ms), saved_ms
                self._anchor = self._saved_anchor = anchor

    def time_of_reply(self, ms: int, sent: float) -> tuple[int, int]:
        """A reply has the server's time, or the latest one in the log if the clock is injected.
        Its question was sent at `sent` (by `elapsed`). Returns the same as `read`.
        """
        if self._clock is not None:
            self.heard(ms)
            return self.read()
        received = elapsed()
        with self._lock:
            drift = DRIFT * (received - self._read_at)
            low, high = ms / 1000 - received, (ms + 1) / 1000 - sent
            if low > self._high + drift or high < self._low - drift:  # a clock was set
                self._learn(ms / 1000, sent, received)
                self._readings = 0  # a reading knows it more exactly
        return self._steady(ms)

    def heard(self, ms: int) -> None:
        """Something has happened at this time: nothing happens before it from now on."""
        with self._lock:
            self._seen_ms = max(self._seen_ms, ms)

    def _learn(self, server_s: float, sent: float, received: float) -> None:
        drift = DRIFT * (received - self._read_at)
        low, high = server_s - received, server_s - sent
        if high < self._low - drift:  # it was set back: time continues from where it is
            self._seen_ms = max(self._seen_ms, int((received + self._offset) * 1000))
        self._low, self._high = max(low, self._low - drift), min(high, self._high + drift)
        if self._low > self._high:  # it was set
            self._low, self._high = low, high
        self._offset = self._low

    def read(self) -> tuple[int, int]:
        """The store's time, and how far it is ahead of a clock that was set back. Milliseconds."""
        clock = self._clock
        return self._steady(int((elapsed() + self._offset) * 1000) if clock is None else clock())

    def _steady(self, given: int) -> tuple[int, int]:
        with self._lock:
            now = given
            if given < self._seen_ms or self._anchor is not None:
                now, self._anchor = steady(given, self._seen_ms, self._anchor)
            self._seen_ms = now
        return now, now - given

    def unsaved(self, *, tick: bool) -> str | None:
        """What to store in `meta` now, if anything."""
        due = tick and self._seen_ms - self._saved_ms >= SAVED_MS
        if not due and self._anchor == self._saved_anchor:
            return None
        return msgspec.json.encode((self._seen_ms, self._anchor)).decode()

    def saved(self, value: str) -> None:
        """This value of `unsaved` is stored."""
        self._saved_ms, self._saved_anchor = msgspec.json.decode(
            value, type=tuple[int, Anchor | None]
        )
