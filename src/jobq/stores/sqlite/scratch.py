"""Where `memory://` lives: a database in a private temporary folder, never synced, gone with the
process.

SQLite's own `:memory:` gets slower with its size: with half a million jobs a claim and its commit
take more than twice as long as with a few (bench/sqlite_pages.py). A file that nobody syncs is
memory too, the kernel's, and behaves like the store that people run in earnest: the same log, the
same threads, the same speed at any backlog.
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
    """A new private folder, removed by `remove`, with its owner, or when the process ends."""
    _sweep()
    made = tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-")
    weakref.finalize(owner, remove, made)
    return made


def remove(made: str) -> None:
    """In the process that made it: a forked child has none."""
    if Path(made).name.startswith(f"{_PREFIX}{os.getpid()}-"):
        shutil.rmtree(made, ignore_errors=True)


@cache
def _sweep() -> None:
    """What killed processes left behind; once per process."""
    for left in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*-*"):
        pid = left.name.removeprefix(_PREFIX).partition("-")[0]
        if pid.isdigit() and not alive(int(pid)):
            shutil.rmtree(left, ignore_errors=True)
