"""A worker that ends when there is nothing to do, for a database that suspends itself."""

from __future__ import annotations

import asyncio
import os

import jobq

billing = jobq.Queue("billing_until_idle", os.environ["DATABASE_URL"])


@billing.task
async def send_receipt(order: int) -> None:
    print(f"receipt for order {order}")


async def work_until_idle() -> None:
    idle = asyncio.Event()
    async with billing, jobq.Worker(billing, on_idle=idle.set):
        await asyncio.sleep(2)  # due schedules and delayed jobs come first
        await idle.wait()


async def main() -> None:
    async with billing:
        await send_receipt.enqueue(1)
    await work_until_idle()


asyncio.run(main())
