"""The tasks that Django's decorator has made for backends of jobq, and the queues that run them.

Django makes a backend per thread, so both are kept here.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from inspect import iscoroutinefunction
from typing import Any

from django.utils.module_loading import import_string

from jobq.django.config import Enqueue
from jobq.django.queue import Queue
from jobq.django.tasks.framework import Task
from jobq.django.tasks.running import handler_of

_lock = threading.Lock()
_tasks: dict[str, Any] = {}  # by the path of the function
_queues: dict[tuple[Any, ...], TaskQueue] = {}


class TaskQueue(Queue):
    """A queue of a backend. It has all tasks, because `using` may send them to any queue."""

    _is_listed = False

    def __init__(self, name: str, alias: str, options: Mapping[str, Any], enqueue: Enqueue) -> None:
        super().__init__(
            name,
            options.get("url"),
            tenant=options.get("tenant"),
            database=options.get("database"),
            enqueue=enqueue,
        )
        self.alias = alias

    def add(self, task: Any) -> None:
        """Let workers of this queue run the task."""
        function = handler_of(self, task, is_async=iscoroutinefunction(task.func))
        self.task(name=task.module_path, retry=0)(function)


def add_task(task: Any) -> None:
    """Remember a task. Copies of it with other options change nothing."""
    with _lock:
        known = _tasks.get(task.module_path)
        if known is not None and known.func is task.func:
            return
        _tasks[task.module_path] = task
        for queue in _queues.values():
            queue.add(task)


def queue_of(alias: str, name: str, options: Mapping[str, Any], enqueue: Enqueue) -> TaskQueue:
    """The queue of that name, with all tasks."""
    key = (alias, name, enqueue, repr(sorted(options.items())))
    if (queue := _queues.get(key)) is not None:
        return queue
    with _lock:
        if key not in _queues:
            queue = TaskQueue(name, alias, options, enqueue)
            for task in _tasks.values():
                queue.add(task)
            _queues[key] = queue
        return _queues[key]


def task_of(path: str) -> Any:
    """The task whose function has this path, or None. Its module is imported if necessary."""
    if (task := _tasks.get(path)) is not None:
        return task
    try:
        found = import_string(path)
    except ImportError:
        return None
    return found if isinstance(found, Task) else None


def queue_names(alias: str) -> set[str]:
    """The queues that the tasks of a backend name."""
    return {task.queue_name for task in _tasks.values() if task.backend == alias}
