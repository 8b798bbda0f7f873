"""Binds the task of another module to a queue."""

from __future__ import annotations

from jobq import Queue
from tests.executors.apps import declared

queue = Queue("bound", "memory://bound")
queue.include(declared.tasks)
