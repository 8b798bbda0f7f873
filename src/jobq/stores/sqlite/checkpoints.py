"""Copies the write-ahead log into the database file, and syncs the log, in a thread of its own.

SQLite would checkpoint inside the commit that fills the log, with two fsyncs: one commit in a
thousand would take milliseconds. Here a thread copies while writers go on. The log can only start
over when a checkpoint has copied all of it, which does not happen while writers never pause. So
when the log has grown too long, the thread stops the writers for the short rest of the copy.

With synchronous=NORMAL, commits are not synced to the disk. The thread does it about every second,
so that a power cut undoes no more than the calls of the last two seconds.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

import apsw

log = logging.getLogger("jobq")

ROWS = 10_000
"""Changed rows after which the next checkpoint begins."""
FRAMES = 20_000
"""Pages in the log (40 MB) from which on a checkpoint stops the writers, so that the log starts
over."""

WATCH_S = 1.0
"""Seconds between two checks of an idle process that its file is still there."""

SYNC_S = 1.0
"""Seconds from one sync of the log to the next, while there are commits. Commits do not wait for
it."""


class Checkpointer:
    """The checkpoint thread of a process and file.

    SQLite lets those of several processes take turns."""

    def __init__(
        self,
        connection: apsw.Connection,
        alone: Callable[[], AbstractContextManager[None]],
        watch: Callable[[], None],
        unsynced_log: str | None = None,
    ) -> None:
        """`alone` stops all writers while its context lasts.

        `watch` is called every `WATCH_S` seconds. `unsynced_log` is the path of the write-ahead log
        if commits do not sync it."""
        self._connection = connection
        self._alone = alone
        self._watch = watch
        self._log = unsynced_log
        self._committed = False  # since the last sync
        self._next_sync = 0.0
        self._wake = threading.Event()
        self._stopping = False
        self._done = 0  # changed rows when the last checkpoint was requested
        self._thread = threading.Thread(
            target=self._serve, name="jobq-sqlite-checkpoint", daemon=True
        )
        self._thread.start()

    def written(self, rows: int) -> None:
        """Call after a commit.

        `rows`: how many rows the connection has changed since it was opened."""
        self._committed = True
        if rows - self._done > ROWS:
            self._done = rows
            self._wake.set()

    def stop(self) -> None:
        """Finish the checkpoint under way, then stop the thread and close the connection."""
        self._stopping = True
        self._wake.set()
        self._thread.join()
        self._connection.close()

    def _serve(self) -> None:
        while True:
            woken = self._wake.wait(WATCH_S)
            self._sync()
            if not woken:
                self._watch()
                continue
            self._wake.clear()
            if self._stopping:
                return
            try:
                self._checkpoint()
            except apsw.Error as e:  # the log stays longer until the next one
                log.warning("a checkpoint of the SQLite log failed, the next one retries it: %s", e)

    def _sync(self) -> None:
        if self._log is None or not self._committed or time.monotonic() < self._next_sync:
            return
        self._committed = False
        self._next_sync = time.monotonic() + SYNC_S
        try:
            file = os.open(self._log, os.O_RDWR)
            try:
                os.fsync(file)
            finally:
                os.close(file)  # SQLite locks other files, so this releases no lock
        except FileNotFoundError:
            pass  # the database was closed or deleted, which `watch` reports
        except OSError as e:
            self._committed = True
            log.warning("the SQLite log could not be synced, the next attempt is soon: %s", e)

    def _checkpoint(self) -> None:
        frames, _ = self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        if frames > FRAMES:
            with self._alone():
                self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)
