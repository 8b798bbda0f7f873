"""A queue for dead letters, and one message to several queues."""

import asyncio

from jobq import Queue, Reject, Worker

orders = Queue("orders", "memory://", dead_letters="trouble")
trouble = Queue("trouble", "memory://")
mail = Queue("mail", "memory://")
audit = Queue("audit", "memory://")


@orders.task
async def ship(order: int) -> None:
    raise Reject(f"order {order} has no address")


@trouble.task(name="ship")
async def look_into(order: int) -> str:
    return f"somebody looks into order {order}"


@mail.task(name="shipped")
async def tell_customer(order: int) -> str:
    return f"mail about {order}"


@audit.task(name="shipped")
def write_down(order: int) -> str:
    return f"note about {order}"


async def main() -> None:
    async with orders, trouble, mail, audit, Worker(orders, trouble, mail, audit):
        job = await ship.enqueue(7)
        await job.wait(timeout=10)
        print(f"the original job stays {await job.state()}")
        async for copy in trouble.find():
            print(f"its copy comes from {copy.origin}")
            print(await trouble.job(copy.id).result(timeout=10))

        for sent in await orders.task_by_name("shipped").broadcast([mail, audit], 8):
            print(await sent.result(timeout=10))


if __name__ == "__main__":
    asyncio.run(main())
