"""An effect that happens exactly once: the handler's writes and its job commit together."""

from __future__ import annotations

import asyncio
import os

import psycopg

from jobq import Queue, Worker, current_job

URL = os.environ["DATABASE_URL"]
bank = Queue("bank", URL)


@bank.task
async def deposit(account: str, cents: int) -> int:
    async with await psycopg.AsyncConnection.connect(URL) as conn:
        cursor = await conn.execute(
            "UPDATE accounts SET cents = cents + %s WHERE name = %s RETURNING cents",
            [cents, account],
        )
        (balance,) = await cursor.fetchone() or (0,)
        await current_job().complete_in(conn, result=balance)
        await conn.commit()
    return int(balance)


async def main() -> None:
    async with await psycopg.AsyncConnection.connect(URL) as conn:
        await conn.execute("CREATE TABLE IF NOT EXISTS accounts (name text, cents int)")
        await conn.execute("INSERT INTO accounts VALUES ('acme', 100)")
    async with bank, Worker(bank):
        job = await deposit.enqueue("acme", 50)
        print("balance:", await job.result(timeout=30))


asyncio.run(main())
