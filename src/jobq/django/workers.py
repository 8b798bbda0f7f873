"""The queues that a worker of a Django project works on."""

from __future__ import annotations

from collections.abc import Iterator

from django.conf import settings
from django.utils.module_loading import autodiscover_modules

from jobq.django.queue import Queue, queues


def queues_to_work_on() -> list[Queue]:
    """The queues of the modules `jobs`, and those of backends for Django's Tasks framework.

    If both have a queue of the same name in the same store, it is one queue with the tasks of
    both."""
    found = {_identity(queue): queue for queue in queues()}
    for queue in _of_task_backends():
        home = found.setdefault(_identity(queue), queue)
        for name, handler in queue.tasks.items():
            home.tasks.setdefault(name, handler)
    return list(found.values())


def _identity(queue: Queue) -> tuple[str, str, str]:
    return queue.url, queue.tenant, queue.name


def _of_task_backends() -> Iterator[Queue]:
    """Imports the module `tasks` of every application, if a backend of jobq runs its tasks."""
    if not getattr(settings, "TASKS", None):
        return
    try:
        from jobq.django.tasks import registry
        from jobq.django.tasks.backend import TaskBackend
        from jobq.django.tasks.framework import task_backends
    except ImportError:  # Django 5.2 without django-tasks: nothing can use the setting
        return
    backends = [task_backends[alias] for alias in task_backends.settings]
    ours = [backend for backend in backends if isinstance(backend, TaskBackend)]
    if ours:
        autodiscover_modules("tasks")
    for backend in ours:
        for name in sorted(backend.queues or registry.queue_names(backend.alias)):
            yield backend.queue(name)
