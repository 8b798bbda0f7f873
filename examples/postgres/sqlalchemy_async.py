"""Jobs and rows in one transaction: an AsyncSession of SQLAlchemy 2 with the psycopg driver."""

from __future__ import annotations

import asyncio
import os

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

import jobq

URL = os.environ["DATABASE_URL"]
billing = jobq.Queue("billing_async_orm", URL)


@billing.task
async def send_receipt(order: int) -> str:
    return f"receipt for order {order}"


async def main() -> None:
    engine = create_async_engine(URL.replace("postgresql://", "postgresql+psycopg://"))
    async with billing, AsyncSession(engine) as session:
        async with session.begin(), jobq.transaction(session):
            await session.execute(text("CREATE TABLE IF NOT EXISTS async_orm_orders (id int)"))
            await session.execute(text("INSERT INTO async_orm_orders (id) VALUES (1)"))
            job = await send_receipt.enqueue(1)
        async with jobq.Worker(billing):
            print(await job.result(timeout=30))
    await engine.dispose()


asyncio.run(main())
