"""jobq in a Django project: add `"jobq.django"` to INSTALLED_APPS.

    # shop/jobs.py, found by itself in every installed application
    from jobq.django import Queue

    emails = Queue("emails")  # in the store that settings.JOBQ names

    @emails.task
    def send_receipt(order: int) -> None: ...

Inside `transaction.atomic()`, `send_receipt.sync.enqueue(7)` stores the job after the commit.
`manage.py jobq_worker` runs the jobs, and `manage.py jobq …` has the commands of jq-ctl.
"""

from __future__ import annotations

from jobq.django.queue import Enqueue, Queue, queues

__all__ = ["Enqueue", "Queue", "queues"]
