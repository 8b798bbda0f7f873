"""The files of a database: creates them, and notices when they are deleted or replaced.

SQLite keeps writing to the file it has opened, even if no path leads to it any more: jobs would be
acknowledged and lost. So writers compare the file at the path with the one they opened, at most
once per second.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
import weakref
from functools import cache
from pathlib import Path

from jobq.stores.sqlite.mailbox import alive

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

CHECK_S = 1.0
"""Seconds between two checks. Acknowledgements stop within this time, and a check costs a few calls
of `stat`.
"""


class Identity:
    """The files of one database as they were when it was opened. The write-ahead log is added once
    it exists.
    """

    def __init__(self, path: str, *others: str) -> None:
        self._seen: dict[str, tuple[int, int]] = {}
        self._optional = (f"{path}-wal", *others)
        self._path = path
        self._next_s = 0.0
        self._gone: str | None = None

    def problem(self) -> str | None:
        """What happened to the files; None while they are the ones that were opened."""
        now = time.monotonic()
        if now < self._next_s or self._gone is not None:
            return self._gone
        self._next_s = now + CHECK_S
        for path in (self._path, *self._optional):
            self._gone = self._compare(path)
            if self._gone is not None:
                break
        return self._gone

    def _compare(self, path: str) -> str | None:
        try:
            found = os.stat(path)
        except FileNotFoundError:
            return (
                f"{path} was deleted while this process was using it"
                if path in self._seen
                else None
            )
        except OSError:  # SQLite reports a file system that is unavailable
            return None
        identity = (found.st_dev, found.st_ino)
        if self._seen.setdefault(path, identity) != identity:
            return f"{path} was replaced by another file while this process was using it"
        return None


def open_files(path: str) -> int | None:
    """Create the files of a database and return its lock file.

    New files are readable and writable by their owner only. Existing files keep their permissions.
    """
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    if fcntl is None:
        return None
    # Users who may write to the database must be able to lock it.
    mode = os.stat(path).st_mode & 0o666
    lock = os.open(f"{path}-lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)
    if os.fstat(lock).st_mode & 0o666 != mode:
        with contextlib.suppress(OSError):  # the file belongs to another user
            os.fchmod(lock, mode)
    return lock


# Private files for `memory://`: a database in a temporary folder, never synced, deleted with the
# process.
#
# SQLite's `:memory:` gets slower as it grows: with half a million jobs a claim and its commit take
# more than twice as long as with a few (bench/sqlite_pages.py). A file that is never synced stays
# in the kernel's memory. It uses the same code as `sqlite://`, and is as fast at any backlog.

_PREFIX = "jobq-memory-"


def scratch_folder(owner: object) -> str:
    """Create a private folder. It is deleted by `remove_scratch`, with its owner, or with the
    process."""
    _sweep()
    made = tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-")
    weakref.finalize(owner, remove_scratch, made)
    return made


def remove_scratch(made: str) -> None:
    """Delete the folder if this process has created it. A forked child leaves it to its parent."""
    if Path(made).name.startswith(f"{_PREFIX}{os.getpid()}-"):
        shutil.rmtree(made, ignore_errors=True)


@cache
def _sweep() -> None:
    """Delete the folders of processes that were killed. Runs once per process."""
    for left in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*-*"):
        pid = left.name.removeprefix(_PREFIX).partition("-")[0]
        if pid.isdigit() and not alive(int(pid)):
            shutil.rmtree(left, ignore_errors=True)
