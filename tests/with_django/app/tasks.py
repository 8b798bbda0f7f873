"""Tasks of Django's own framework. A worker imports this module by itself."""

from __future__ import annotations

import asyncio
from typing import Any

from django.db import transaction

try:
    from django.tasks import task
except ImportError:
    try:
        from django_tasks import task
    except ImportError:  # Django 5.2 alone has no such framework

        def task(*_: Any, **__: Any) -> Any:
            """Makes nothing."""
            return lambda function: function


from tests.with_django.app.models import Order

contexts: list[Any] = []


@task()
def confirm_order(id: int, *, confirmed: bool = True) -> dict[str, int]:
    """Confirm an order."""
    return {"confirmed": Order.objects.filter(id=id).update(confirmed=confirmed)}


@task(queue_name="slow", priority=10)
async def count_orders() -> int:
    """An async task."""
    found: int = await Order.objects.acount()
    return found


@task(takes_context=True)
def fail_at_first(context: Any, attempts: int) -> int:
    """Fail until this attempt."""
    contexts.append(context)
    if context.attempt < attempts:
        raise LookupError(f"attempt {context.attempt}")
    result: int = context.attempt
    return result


@task()
async def wait_for_ever() -> None:
    """Go on until the timeout."""
    await asyncio.Event().wait()


@task()
def return_a_set() -> Any:
    """Return what JSON cannot say."""
    return {1, 2}


@task()
def fail_in_a_transaction() -> None:
    """Fail, and leave no row."""
    with transaction.atomic():
        Order.objects.create(name="never")
        raise Order.DoesNotExist("no order")
