from .queues import orders


@orders.task
async def charge(invoice: int) -> int:
    return invoice
