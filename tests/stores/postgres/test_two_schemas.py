"""Stores in two schemas of one database are separate."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg

from jobq import Queue, State, Worker, current_job, transaction
from tests.stores.postgres.callers import active, add_to
from tests.waiting import PATIENCE_S, until


async def test_a_transaction_keeps_nobody_from_removing_a_queue_of_another_schema(
    queue: Queue, url: str, store: str
) -> None:
    async with Queue("work", f"{store}_other") as other:
        await add_to(other).enqueue(1)
        async with await psycopg.AsyncConnection.connect(url) as conn:
            async with transaction(conn):
                await add_to(queue).enqueue(1)
            await other.obliterate()
            await conn.commit()
    assert (await queue.counts())[State.WAITING] == 1


async def test_jobs_of_the_same_number_are_completed_beside_each_other(
    queue: Queue, url: str, store: str
) -> None:
    end = asyncio.Event()

    async def complete() -> Any:
        async with await psycopg.AsyncConnection.connect(url) as conn:
            await current_job().complete_in(conn, "done")
            if current_job().id == "first":
                await end.wait()
            await conn.commit()

    async with Queue("work", f"{store}_other") as other, Worker(queue), Worker(other):
        first = await queue.task(complete).options(id="first").enqueue()
        await until(lambda: active(first), "the first job to start")
        second = await other.task(complete).options(id="second").enqueue()
        assert await second.result(timeout=PATIENCE_S) == "done"
        assert (await second.info()).attempt == 1
        end.set()
        assert await first.result(timeout=PATIENCE_S) == "done"
