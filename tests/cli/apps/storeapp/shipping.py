from .queues import orders


@orders.task
async def ship(order: int) -> str:
    return f"shipped {order}"
