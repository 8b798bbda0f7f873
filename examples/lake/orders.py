"""Sixty orders: most are shipped, some need a retry, and those without an address fail for good.

The store is that of JQ_URL. The guide's walk to a proved lake begins with this program."""

from __future__ import annotations

import asyncio

from jobq import Queue, Reject, Retry, State, Worker, current_job

orders = Queue("orders")


@orders.task(retry=Retry(3, base=0.05))
async def ship(order: int) -> str:
    if order % 20 == 0:
        raise Reject(f"order {order} has no address")
    if order % 7 == 0 and current_job().attempt == 1:
        raise ConnectionError("the carrier does not respond")
    await asyncio.sleep(0.02)
    return f"order {order} is on its way"


async def main() -> None:
    async with orders, Worker(orders, concurrency=4):
        jobs = [await ship.enqueue(number) for number in range(1, 61)]
        for job in jobs:
            await job.wait(timeout=60)
        states = [await job.state() for job in jobs]
    print(f"{states.count(State.COMPLETED)} orders shipped, {states.count(State.FAILED)} failed")


if __name__ == "__main__":
    asyncio.run(main())
