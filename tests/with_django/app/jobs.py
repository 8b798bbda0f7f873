"""Tasks that the tests enqueue. Django finds this module by itself."""

from __future__ import annotations

import threading

from django.db import connection, transaction

from jobq.django import Queue
from tests.with_django.app.models import Order

orders = Queue("orders")
seen: list[object] = []


@orders.task
def confirm(id: int) -> bool:
    """Confirm an order, and say whether it was found."""
    return bool(Order.objects.filter(id=id).update(confirmed=True))


@orders.task
def count() -> tuple[int, str]:
    """Use the database, and leave the connection open."""
    seen.append(connection.connection)
    return Order.objects.count(), threading.current_thread().name


@orders.task
async def acount() -> int:
    """The same in an async handler."""
    found: int = await Order.objects.acount()
    return found


heavy = Queue("heavy", executor="process")


@heavy.task
def count_apart() -> int:
    """Use the database in a child process."""
    return int(Order.objects.count())


@orders.task(retry=0)
def break_off() -> None:
    """Fail inside a transaction."""
    with transaction.atomic():
        Order.objects.create(name="never")
        raise ValueError("no")
