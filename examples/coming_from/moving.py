"""Moving a live system to jobq: the old handlers forward what still arrives in the old broker.

No job runs twice: the id of a job is made from what it is about."""

import asyncio

from jobq import Queue, Worker

shop = Queue("shop", "memory://")
charged: list[int] = []


@shop.task
async def charge(invoice: int) -> int:
    charged.append(invoice)
    return invoice


def old_task_forwards(invoice: int) -> None:
    """What remains of the old plain task: its worker calls this for old messages."""
    charge.options(id=f"charge-{invoice}").sync.enqueue(invoice)


async def old_coroutine_forwards(invoice: int) -> None:
    """The same for a peer with async tasks."""
    await charge.options(id=f"charge-{invoice}").enqueue(invoice)


async def new_code(invoice: int) -> None:
    """Every producer that has moved calls jobq, with the same id."""
    await charge.options(id=f"charge-{invoice}").enqueue(invoice)


async def main() -> None:
    async with shop, Worker(shop):
        await asyncio.to_thread(old_task_forwards, 7)
        await old_coroutine_forwards(8)
        await new_code(7)  # a producer that has moved, about the same invoice
        await new_code(9)
        for invoice in (7, 8, 9):
            await shop.job(f"charge-{invoice}").result(timeout=10)
    print(f"charged once each: {sorted(charged)}")


if __name__ == "__main__":
    asyncio.run(main())
