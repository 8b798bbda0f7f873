"""Private files for `memory://`: a database in a temporary folder, never synced, deleted with the
process.

SQLite's `:memory:` gets slower as it grows: with half a million jobs a claim and its commit take
more than twice as long as with a few (bench/sqlite_pages.py). A file that is never synced stays in
the kernel's memory. It uses the same code as `sqlite://`, and is as fast at any backlog.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from functools import cache
from pathlib import Path

from jobq.stores.sqlite.mailbox import alive

_PREFIX = "jobq-memory-"


def folder(owner: object) -> str:
    """Create a private folder. It is deleted by `remove`, with its owner, or with the process."""
    _sweep()
    made = tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-")
    weakref.finalize(owner, remove, made)
    return made


def remove(made: str) -> None:
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
