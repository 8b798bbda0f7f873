"""A database file and its connections, shared by all handles of the process.

There is a connection to write and one to read, each with a thread (transactions.py), and one for
checkpoints. Writers of several processes wait for each other at a file lock, where the kernel wakes
the next one. SQLite's busy handler would sleep and try again.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import threading
from collections.abc import Iterator

import apsw

from jobq.errors import ConfigError, StoreUnavailable
from jobq.stores.sqlite import checksums, files, schema, wal
from jobq.stores.sqlite.clock import StoreClock
from jobq.stores.sqlite.files import Identity, open_files
from jobq.stores.sqlite.mailbox import Post
from jobq.stores.sqlite.transactions import TransactionThread
from jobq.stores.sqlite.wal import Checkpointer

try:
    import fcntl
except ImportError:  # Windows: SQLite's busy handler alone
    fcntl = None  # type: ignore[assignment]

log = logging.getLogger("jobq")

BUSY_MS = 10_000
"""Milliseconds that SQLite waits for the lock of another program, before the call fails."""
STATEMENTS = 512
"""Prepared statements that apsw keeps at the most. It keeps them in a ring, and each execution
takes the next place, also within executemany. A statement that drops out is prepared again, which
takes 50 µs."""
PAGE = 2048
"""Bytes of a page. A transaction of one job changes about six pages, and the log gets each of them
whole: a commit costs half as much again with 4 KiB and twice as much with 8 KiB
(bench/sqlite_pages.py). Smaller pages would make the trees of a large backlog deeper."""

PASSING = (apsw.BusyError, apsw.LockedError, apsw.FullError, apsw.IOError, apsw.NoMemError)
"""Trouble while opening a file that may pass: a worker waits for it, as for any unavailable store.
"""
PASSING_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE})
"""The same, as the operating system reports it."""


class Database:
    """What the handles on one file share. The first handle opens it, the last one closes it."""

    def __init__(self, path: str | None, *, full: bool, checksums: bool = False) -> None:
        """`path` None: a private file for memory://. `full`: every commit is synced to the disk.
        `checksums`: the pages of a new file have checksums."""
        self._private = path is None
        self.path = path or f"{files.scratch_folder(self)}/jobs.db"
        self.full = full
        self._checksums = checksums
        self.post = Post()
        self.log_id = ""
        self.clock = StoreClock()
        # Part of every event's id. After a power cut, events that did not reach the disk leave
        # their numbers to later ones. Another process writes those, so their ids differ.
        self.incarnation = os.urandom(4).hex()
        self.checkpointer: Checkpointer | None = None
        self.identity: Identity | None = None  # None: the file is private to this process
        self._lost = False  # the file was deleted or replaced, and that was logged
        self._lock_file: int | None = None
        self.writer = TransactionThread(self, writes=True, at_once=not full)
        self.reader = TransactionThread(self, writes=False)
        self._opening = threading.Lock()
        self._ready = False

    async def ready(self) -> None:
        """Open the file and bring its schema up to date."""
        await asyncio.get_running_loop().run_in_executor(None, self._prepare)

    def close(self) -> None:
        """Finish the requests that wait, stop the threads and close the file."""
        self.writer.stop()
        self.reader.stop()
        if self.checkpointer is not None:
            self.checkpointer.stop()
        self.post.close()
        if self._lock_file is not None:
            os.close(self._lock_file)
            self._lock_file = None
        if self._private:
            files.remove_scratch(os.path.dirname(self.path))

    def take_turn(self, *, wait: bool) -> bool:
        """Lock the file against other writing processes.

        False: it is locked, and `wait` is False."""
        if self._lock_file is not None:
            try:
                fcntl.flock(
                    self._lock_file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB
                )
            except BlockingIOError:
                return False
        return True

    def load_time(self, connection: apsw.Connection) -> None:
        """Continue from the time of the last transaction of any process."""
        self.clock.load(connection)
        if self._lock_file is not None:
            self.clock.load_shared(self._lock_file, self.log_id)

    def end_turn(self) -> None:
        """Unlock the file. Other processes continue from the time of this turn."""
        if self._lock_file is not None:
            self.clock.share(self._lock_file, self.log_id)
            fcntl.flock(self._lock_file, fcntl.LOCK_UN)

    def check_identity(self) -> None:
        """StoreUnavailable if the file was deleted or replaced: writes to it would be lost."""
        problem = self.identity.problem() if self.identity is not None else None
        if problem is not None:
            raise StoreUnavailable(
                f"{problem}; nothing more is accepted here:"
                " put the file back and restart this process"
            )

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Keep all processes from writing, this one included, while the context lasts."""
        with self.writer.turn:
            self.take_turn(wait=True)
            try:
                yield
            finally:
                self.end_turn()

    def _watch(self) -> None:
        """Check that the file is still there. If not, wake all sleeping workers of this process.

        A sleeping worker makes no call. Once awake, its next call fails with the reason."""
        problem = self.identity.problem() if self.identity is not None and not self._lost else None
        if problem is not None:
            self._lost = True
            log.error(
                "%s: nothing more is accepted; put the file back and restart this process", problem
            )
            for mailbox in tuple(self.post.mailboxes.values()):
                mailbox.wake_all()

    def _prepare(self) -> None:
        with self._opening:
            if self._ready:
                return
            try:
                self._open_file()
            except PASSING as e:
                why = checksums.explained(e)
                raise StoreUnavailable(f"cannot open {self.path!r} now: {why}") from e
            except apsw.Error as e:
                raise ConfigError(f"cannot open {self.path!r} as a SQLite database: {e}") from e
            except OSError as e:
                error = StoreUnavailable if e.errno in PASSING_ERRNOS else ConfigError
                raise error(f"cannot open {self.path!r}: {e.strerror or e}") from e
            self._ready = True

    def _open_file(self) -> None:
        if not self._private:
            self._lock_file = open_files(self.path)
            self.identity = Identity(self.path, f"{self.path}-lock")
        with self.alone():
            connection = self._connect(new=self._choose_checksums())
            try:
                self._check_log(connection)  # before anything is written over the damaged part
                connection.execute("BEGIN IMMEDIATE")
                self.log_id = schema.migrate(connection)
                self.load_time(connection)
                connection.execute("COMMIT")
            except BaseException:
                connection.close()
                raise
        self.writer.start(connection)
        self.reader.start(self._connect())
        unsynced = None if self._private or self.full else f"{self.path}-wal"
        self.checkpointer = Checkpointer(self._connect(), self.alone, self._watch, unsynced)

    def _check_log(self, connection: apsw.Connection) -> None:
        """Log an error if SQLite has ignored a part of the write-ahead log."""
        found = None if self._private else wal.lost_commits(connection, self.path)
        if found is not None:
            log.error(
                "%s-wal is damaged behind frame %d, so the %d commits behind it are lost: their "
                "jobs may be missing or run again. After a power cut with synchronous=normal this "
                "is expected; otherwise check the disk",
                self.path,
                found.frame,
                found.commits,
            )

    def check_options(self, *, full: bool, checked: bool) -> None:
        """ConfigError if an open database cannot keep what another handle asks for: that commits
        are synced (`full`), or that pages have checksums (`checked`)."""
        if checked and not self._checksums:
            raise checksums.refused(self.path)
        if full and not self.full:
            raise ConfigError(
                f"this process has opened {self.path!r} without synchronous=full, so its commits"
                " are not synced: give all its URLs synchronous=full"
            )

    def _choose_checksums(self) -> bool:
        """Decide by the file whether pages have checksums. Returns whether the file is new."""
        found = checksums.used(self.path)
        if found is False and self._checksums:
            raise checksums.refused(self.path)
        self._checksums = self._checksums if found is None else found
        if self._checksums:
            checksums.load()
        return found is None

    def _connect(self, *, new: bool = False) -> apsw.Connection:
        vfs = checksums.VFS if self._checksums else None
        connection = apsw.Connection(self.path, vfs=vfs, statementcachesize=STATEMENTS)
        try:
            connection.set_busy_timeout(BUSY_MS)
            connection.execute(f"PRAGMA page_size = {PAGE}")
            if new and self._checksums:
                checksums.reserve(connection)
            connection.execute("PRAGMA journal_mode = WAL").fetchone()
            connection.execute("PRAGMA wal_autocheckpoint = 0").fetchone()
            synchronous = "OFF" if self._private else "FULL" if self.full else "NORMAL"
            connection.execute(f"PRAGMA synchronous = {synchronous}")
            connection.execute("PRAGMA temp_store = MEMORY")
            connection.execute("PRAGMA cache_size = -65536")
        except BaseException:
            connection.close()
            raise
        return connection


_shared: dict[str, tuple[Database, int]] = {}  # by name: the database, and how many handles use it
_shared_lock = threading.Lock()


def shared(name: str, path: str | None, *, full: bool, checksums: bool = False) -> Database:
    """The process's database of this name, for one more handle. Call `released` when it closes."""
    with _shared_lock:
        database, users = _shared.get(name, (None, 0))
        if database is None:
            database = Database(path, full=full, checksums=checksums)
        _shared[name] = (database, users + 1)
        return database


def released(name: str) -> None:
    """A handle has closed. The last one closes the database."""
    with _shared_lock:
        database, users = _shared[name]
        if users > 1:
            _shared[name] = (database, users - 1)
            return
        del _shared[name]
    database.close()


def _forget() -> None:
    """In a forked child: forget the databases, because connections do not survive a fork."""
    global _shared_lock
    _shared.clear()
    _shared_lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
