"""A task of Django's own framework, which jobq runs."""

from __future__ import annotations

try:
    from django.tasks import task
except ImportError:  # Django 5.2, with the package django-tasks
    from django_tasks import task

from orders.models import Order


@task(priority=10)
def count_receipts() -> int:
    return int(Order.objects.filter(receipt_sent=True).count())
