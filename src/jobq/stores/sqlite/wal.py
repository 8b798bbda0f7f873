"""The write-ahead log: copied into the database in a thread, and checked when a file is opened.

`Checkpointer` copies the log; `lost_commits` checks it.

After a crash, SQLite reads the log up to the first frame whose checksum is wrong, and takes it for
the end: usually it is the frame that was being written. But a bit that the disk has flipped looks
the same, and every later commit is lost without an error. The later frames are still in the file.
"""

from __future__ import annotations

import contextlib
import logging
import os
import struct
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NamedTuple

import apsw

COMMITS = 2
"""Commits behind the end of the log from which on it is damaged. A process that was killed during a
commit leaves one at most, which nobody was told of."""

_HEADER = struct.Struct(">IIIIIIII")
"""Magic number, version, page size, checkpoints, two salts, two checksums."""
_FRAME = struct.Struct(">IIIIII")
"""Page number, pages of the database (0: no commit), two salts, two checksums."""
_MAGIC = 0x377F0682
"""The lowest bit says whether checksums are computed from big-endian numbers."""
_NOOP: int | None = getattr(apsw, "SQLITE_CHECKPOINT_NOOP", None)  # SQLite 3.51


class LostCommits(NamedTuple):
    """SQLite has used the log up to this frame. `commits` are behind it."""

    frame: int
    commits: int


def lost_commits(connection: apsw.Connection, path: str) -> LostCommits | None:
    """What SQLite has ignored of the log. Reads the headers of all frames, and the pages of one
    commit.

    Nobody may write meanwhile."""
    if _NOOP is None:
        return None
    connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchall()  # reads the log
    try:
        used, _ = connection.wal_checkpoint(mode=_NOOP)
    except apsw.Error:
        return None
    with contextlib.suppress(FileNotFoundError), open(f"{path}-wal", "rb") as file:
        return _lost_commits(file.fileno(), max(0, used))
    return None


def _lost_commits(file: int, used: int) -> LostCommits | None:
    head = os.pread(file, _HEADER.size, 0)
    if len(head) < _HEADER.size:
        return None
    magic, _, page, _, *rest = _HEADER.unpack(head)
    salts, checksum = tuple(rest[:2]), (rest[2], rest[3])
    length = _FRAME.size + page
    frames = (os.fstat(file).st_size - _HEADER.size) // length
    big = bool(magic & 1)
    if magic & ~1 != _MAGIC or _sum(head[:24], (0, 0), big) != checksum:
        # The salts may be the damaged part, so all frames count.
        commits = _commits(file, range(frames), length, None)
        return LostCommits(0, commits) if commits >= COMMITS and not used else None
    if used >= frames:
        return None
    if used:
        checksum = _FRAME.unpack(os.pread(file, _FRAME.size, _offset(used - 1, length)))[4:]
    for frame in range(used, frames):
        content = os.pread(file, length, _offset(frame, length))
        _, pages, *end = _FRAME.unpack(content[: _FRAME.size])
        checksum = _sum(content[:8] + content[_FRAME.size :], checksum, big)
        if tuple(end) != (*salts, *checksum):
            commits = _commits(file, range(frame, frames), length, salts)
            return LostCommits(used, commits) if commits >= COMMITS else None
        if pages:
            return None  # a whole commit that SQLite does not use: it has begun another log
    return None


def _commits(file: int, frames: range, length: int, salts: tuple[int, ...] | None) -> int:
    found = 0
    for frame in frames:
        _, pages, *rest = _FRAME.unpack(os.pread(file, _FRAME.size, _offset(frame, length)))
        found += pages != 0 and (salts is None or tuple(rest[:2]) == salts)
    return found


def _offset(frame: int, length: int) -> int:
    return _HEADER.size + frame * length


def _sum(data: bytes, start: tuple[int, ...], big: bool) -> tuple[int, int]:
    """The checksum of a header or a frame, which continues that of the frame before."""
    one, two = start
    numbers = struct.unpack(f"{'>' if big else '<'}{len(data) // 4}I", data)
    for n in range(0, len(numbers), 2):
        one = (one + numbers[n] + two) & 0xFFFFFFFF
        two = (two + numbers[n + 1] + one) & 0xFFFFFFFF
    return one, two


# Copies the write-ahead log into the database file, and syncs the log, in a thread of its own.
#
# SQLite would checkpoint inside the commit that fills the log, with two fsyncs: one commit in a
# thousand would take milliseconds. Here a thread copies while writers go on. The log can only start
# over when a checkpoint has copied all of it, which does not happen while writers never pause. So
# when the log has grown too long, the thread stops the writers for the short rest of the copy.
#
# With synchronous=NORMAL, commits are not synced to the disk. The thread does it about every
# second, so that a power cut undoes no more than the calls of the last two seconds.

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
