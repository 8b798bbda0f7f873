"""jobq in a Django project: add `"jobq.django"` to INSTALLED_APPS.

    # shop/jobs.py, found by itself in every installed application
    from jobq.django import Queue

    emails = Queue("emails")  # in the store that settings.JOBQ names

    @emails.task
    def send_receipt(order: int) -> None: ...

Inside `transaction.atomic()`, `send_receipt.sync.enqueue(7)` stores the job after the commit.
`manage.py jobq_worker` runs the jobs, and `manage.py jobq …` has the commands of jq-ctl.

`TaskBackend` is the backend for Django's own Tasks framework.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jobq.django.queue import Enqueue, Queue, queues

if TYPE_CHECKING:
    from jobq.django.tasks.backend import TaskBackend as TaskBackend

__all__ = ["Enqueue", "Queue", "queues"]  # and TaskBackend, if there is a Tasks framework


def __getattr__(name: str) -> Any:
    # Imported on first use: Django 5.2 has no Tasks framework, unless django-tasks is installed.
    if name == "TaskBackend":
        from jobq.django.tasks.backend import TaskBackend

        return TaskBackend
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
