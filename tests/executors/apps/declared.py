"""A task for child processes that knows no queue."""

from __future__ import annotations

import os

from jobq import Tasks

tasks = Tasks()


@tasks.task(executor="process")
def pid() -> int:
    return os.getpid()
