"""SAQ with its PostgreSQL queue on psycopg, with its default pool of 4 to 20 connections.

Results are stored for its default ttl. It has no bulk call. `apply` polls for the result every half
second by default. The interval is 1 ms here, because otherwise request/response would only measure
the interval.
"""

from __future__ import annotations

from typing import Any

from saq import Worker
from saq.queue.postgres import PostgresQueue

from bench.adapter import PAYLOAD, RESULT, AsyncAdapter, main, tick


async def noop(ctx: dict[str, Any], *, payload: str) -> int:
    tick()
    return RESULT


class Saq(AsyncAdapter):
    packages = ("saq", "psycopg")

    async def prepare(self) -> None:
        await self.open()
        await self.close()

    async def open(self) -> None:
        self.queue = PostgresQueue.from_url(self.url, name="bench")
        await self.queue.connect()

    async def close(self) -> None:
        await self.queue.disconnect()

    async def enqueue(self) -> object:
        return await self.queue.enqueue("noop", payload=PAYLOAD)

    async def request(self) -> object:
        return await self.queue.apply("noop", timeout=30, poll_interval=0.001, payload=PAYLOAD)

    async def work(self, concurrency: int) -> None:
        await Worker(self.queue, functions=[("noop", noop)], concurrency=concurrency).start()


if __name__ == "__main__":
    main(Saq)
