"""The time of a database, which never goes back (core/clock.py). All handles of the process share
it.

The database stores the latest time in `meta`, for other processes and for this one after a restart:
once per `SAVED_MS`, and whenever the machine's clock is set back.
"""

from __future__ import annotations

import apsw
import msgspec

from jobq.core.clock import Anchor, steady

SAVED_MS = 10_000
"""Milliseconds between two times that are stored. If the clock is set back while no process has the
file open, the loss is at most this much.
"""


class StoreClock:
    """Reads the clocks of handles, and remembers the latest time."""

    def __init__(self) -> None:
        self._seen_ms = self._saved_ms = 0
        self._anchor: Anchor | None = None
        self._saved_anchor: Anchor | None = None

    def read(self, clock_ms: int) -> int:
        """The database's time, from the time of a handle's clock. Two comparisons, unless the clock
        was set back.
        """
        if clock_ms < self._seen_ms or self._anchor is not None:
            clock_ms, self._anchor = steady(clock_ms, self._seen_ms, self._anchor)
        self._seen_ms = clock_ms
        return clock_ms

    def load(self, connection: apsw.Connection) -> None:
        """Continue from the time that this or another process has stored."""
        row = connection.execute("SELECT value FROM meta WHERE name = 'clock'").fetchone()
        if row is not None:
            saved_ms, anchor = msgspec.json.decode(row[0], type=tuple[int, Anchor | None])
            self._seen_ms, self._saved_ms = max(self._seen_ms, saved_ms), saved_ms
            self._anchor = self._saved_anchor = anchor

    def unsaved(self) -> None:
        """The transaction was undone, and with it the time that it stored: the next one stores it
        again.
        """
        self._saved_ms = 0

    def save(self, connection: apsw.Connection) -> None:
        """Store the time if that is due. Runs inside a write transaction."""
        if self._seen_ms - self._saved_ms >= SAVED_MS or self._anchor != self._saved_anchor:
            self._saved_ms, self._saved_anchor = self._seen_ms, self._anchor
            value = msgspec.json.encode((self._seen_ms, self._anchor)).decode()
            connection.execute(
                "INSERT OR REPLACE INTO meta (name, value) VALUES ('clock', ?)", (value,)
            )
