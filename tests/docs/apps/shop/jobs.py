"""Its queues. Without a URL: the store is that of JQ_URL."""

from __future__ import annotations

from jobq import Queue

billing = Queue("billing")
emails = Queue("emails")
orders = Queue("orders")


@billing.task
async def charge(tenant: str, invoice: int) -> str:
    return f"{tenant} paid invoice {invoice}"


@emails.task
async def send(to: str) -> str:
    return to


@orders.task
async def place(order: int) -> int:
    return order
