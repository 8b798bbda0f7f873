"""Moves what the write-ahead log has gathered into the database file, beside the writers instead of in their way.

SQLite would do it inside the commit that fills the log, with two fsyncs: a commit a thousand would take milliseconds.
Here a thread copies while writers go on, and when the log has grown all the same (writers that never pause leave
nothing to begin anew with), it holds them for the little that is left.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

import apsw

log = logging.getLogger("jobq")

ROWS = 10_000
"""Rows changed between two checkpoints."""
FRAMES = 20_000
"""Pages in the log from which on writers are held until it can begin anew."""

WATCH_S = 1.0
"""Seconds after which an idle process looks whether its file is still there."""


class Checkpointer:
    """One per process and file. Whoever writes most wakes it most; several processes' take turns inside SQLite."""

    def __init__(
        self,
        connection: apsw.Connection,
        alone: Callable[[], AbstractContextManager[None]],
        watch: Callable[[], None],
    ) -> None:
        """`watch` is called once per `WATCH_S`, from the thread: it looks whether the file is still there."""
        self._connection = connection
        self._alone = alone
        self._watch = watch
        self._wake = threading.Event()
        self._stopping = False
        self._done = 0  # rows changed when the last one was asked for
        self._thread = threading.Thread(
            target=self._serve, name="jobq-sqlite-checkpoint", daemon=True
        )
        self._thread.start()

    def written(self, rows: int) -> None:
        """A commit: the connection has changed this many rows in all."""
        if rows - self._done > ROWS:
            self._done = rows
            self._wake.set()

    def stop(self) -> None:
        """After what it is doing."""
        self._stopping = True
        self._wake.set()
        self._thread.join()
        self._connection.close()

    def _serve(self) -> None:
        while True:
            if not self._wake.wait(WATCH_S):
                self._watch()
                continue
            self._wake.clear()
            if self._stopping:
                return
            try:
                self._checkpoint()
            except (
                apsw.Error
            ) as e:  # the log grows a little longer, and the next one has more to do
                log.warning(
                    "a checkpoint of the SQLite log did not succeed, the next one will have more to do: %s",
                    e,
                )

    def _checkpoint(self) -> None:
        frames, _ = self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        if frames > FRAMES:
            with self._alone():
                self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)
