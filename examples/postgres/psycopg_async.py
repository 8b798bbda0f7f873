"""Jobs and rows in one transaction: psycopg with asyncio."""

from __future__ import annotations

import asyncio
import os

import psycopg

import jobq

URL = os.environ["DATABASE_URL"]
billing = jobq.Queue("billing_async", URL)


@billing.task
async def send_receipt(order: int) -> str:
    return f"receipt for order {order}"


async def main() -> None:
    async with billing, await psycopg.AsyncConnection.connect(URL) as conn:
        async with conn.transaction(), jobq.transaction(conn):
            await conn.execute("CREATE TABLE IF NOT EXISTS async_orders (id int)")
            await conn.execute("INSERT INTO async_orders (id) VALUES (1)")
            job = await send_receipt.enqueue(1)
        async with jobq.Worker(billing):
            print(await job.result(timeout=30))


asyncio.run(main())
