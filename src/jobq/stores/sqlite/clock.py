"""The time of a database, which never goes back (core/rules/clock.py). All handles of the process
share it.

The database stores the latest time in `meta`: once per `SAVED_MS`, and whenever the machine's clock
is set back. The lock file has the time of the last transaction, for the other processes and for
those that open the database later. Nothing syncs it, so a power cut may lose it.
"""

from __future__ import annotations

import contextlib
import os
import struct

import apsw
import msgspec

from jobq.core.rules.clock import Anchor, steady

SAVED_MS = 10_000
"""Milliseconds between two times that are stored. If the clock is set back in a power cut, the loss
is at most this much.
"""
_LATEST = struct.Struct("<12sqq")
"""What the lock file has: which database it is, the time, and the negated time as a check."""


class StoreClock:
    """Reads the clocks of handles, and remembers the latest time."""

    def __init__(self) -> None:
        self._seen_ms = self._saved_ms = 0
        self._anchor: Anchor | None = None
        self._saved_anchor: Anchor | None = None
        self._shared_ms = 0

    def read(self, clock_ms: int) -> int:
        """The database's time, from the time of a handle's clock. Two comparisons, unless the clock
        was set back.
        """
        if clock_ms < self._seen_ms or self._anchor is not None:
            clock_ms, self._anchor = steady(clock_ms, self._seen_ms, self._anchor)
        self._seen_ms = clock_ms
        return clock_ms

    def share(self, lock_file: int, log_id: str) -> None:
        """Write the time of a transaction to the lock file, for the other processes."""
        if self._seen_ms != self._shared_ms:
            self._shared_ms = self._seen_ms
            with contextlib.suppress(OSError):  # the disk is full: `meta` has an earlier time
                latest = _LATEST.pack(log_id.encode(), self._seen_ms, -self._seen_ms)
                os.pwrite(lock_file, latest, 0)

    def load_shared(self, lock_file: int, log_id: str) -> None:
        """Continue from the time of the last transaction of any process."""
        found = os.pread(lock_file, _LATEST.size, 0)
        if len(found) == _LATEST.size:
            name, ms, check = _LATEST.unpack(found)
            if name == log_id.encode() and ms == -check:
                self._seen_ms = max(self._seen_ms, ms)

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
