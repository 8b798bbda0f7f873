"""The tasks of the shop. jobq imports this module by itself."""

from __future__ import annotations

from jobq.django import Queue
from orders.models import Order

emails = Queue("emails")


@emails.task(retry=5)
def send_receipt(order_id: int) -> str:
    order = Order.objects.get(id=order_id)
    print(f"Thank you for order {order_id}, {order.email}", flush=True)
    Order.objects.filter(id=order_id).update(receipt_sent=True)
    return str(order.email)
