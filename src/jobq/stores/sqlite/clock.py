"""The time of a database, which never goes back (core/clock.py). One for all handles of the
process.

Other processes, and this one after a restart, learn from `meta` what time it was: it is written
when the clock was set back, and otherwise once per `SAVED_MS`.
"""

from __future__ import annotations

import apsw
import msgspec

from jobq.core.clock import Anchor, steady

SAVED_MS = 10_000
"""A clock that is set back while no process has the file open is found to be so to this precision.
"""


class StoreClock:
    """Reads clocks of this machine, and remembers the latest time."""

    def __init__(self) -> None:
        self._seen_ms = self._saved_ms = 0
        self._anchor: Anchor | None = None
        self._saved_anchor: Anchor | None = None

    def read(self, clock_ms: int) -> int:
        """The database's time. Cheap: two comparisons, unless the clock was set back."""
        if clock_ms < self._seen_ms or self._anchor is not None:
            clock_ms, self._anchor = steady(clock_ms, self._seen_ms, self._anchor)
        self._seen_ms = clock_ms
        return clock_ms

    def load(self, connection: apsw.Connection) -> None:
        """Take up what this or another process has saved."""
        row = connection.execute("SELECT value FROM meta WHERE name = 'clock'").fetchone()
        if row is not None:
            saved_ms, anchor = msgspec.json.decode(row[0], type=tuple[int, Anchor | None])
            self._seen_ms, self._saved_ms = max(self._seen_ms, saved_ms), saved_ms
            self._anchor = self._saved_anchor = anchor

    def unsaved(self) -> None:
        """The transaction was undone: what it saved has to be saved again."""
        self._saved_ms = 0

    def save(self, connection: apsw.Connection) -> None:
        """Inside a write transaction: save the time if it is time to."""
        if self._seen_ms - self._saved_ms >= SAVED_MS or self._anchor != self._saved_anchor:
            self._saved_ms, self._saved_anchor = self._seen_ms, self._anchor
            value = msgspec.json.encode((self._seen_ms, self._anchor)).decode()
            connection.execute("INSERT OR REPLACE INTO meta VALUES ('clock', ?)", (value,))
