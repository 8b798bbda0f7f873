"""Oban for Python on psycopg, with its default pool of up to 10 connections. Results are recorded.

`debounce_interval`, its pause between two fetches, is 1 ms instead of 5 ms. It cannot wait for a
job, so request/response is not measured.
"""

from __future__ import annotations

import asyncio
from typing import Any

from oban import Oban, Record, worker
from oban.schema import install

from bench.adapter import PAYLOAD, RESULT, AsyncAdapter, Unsupported, chunks, main, tick


@worker(queue="default")
class Noop:
    async def process(self, job: Any) -> Record:
        tick()
        return Record(RESULT)


class ObanPeer(AsyncAdapter):
    packages = ("oban", "psycopg")

    async def prepare(self) -> None:
        pool = await Oban.create_pool(self.url)
        await install(pool)
        await pool.close()

    async def open(self) -> None:
        self.pool = await Oban.create_pool(self.url, min_size=2, max_size=10)
        self.oban = Oban(pool=self.pool)

    async def close(self) -> None:
        await self.pool.close()

    async def enqueue(self) -> object:
        return await self.oban.enqueue(Noop.new({"payload": PAYLOAD}))

    async def bulk(self, n: int) -> None:
        for size in chunks(n, 1000):
            await self.oban.enqueue_many(Noop.new({"payload": PAYLOAD}) for _ in range(size))

    async def request(self) -> object:
        raise Unsupported("no way to wait for a job")

    async def work(self, concurrency: int) -> None:
        queues = {"default": {"limit": concurrency, "debounce_interval": 0.001}}
        async with Oban(pool=self.pool, queues=queues):
            await asyncio.Event().wait()


if __name__ == "__main__":
    main(ObanPeer)
