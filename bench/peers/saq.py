"""SAQ with its Redis queue and hiredis. Results are stored for its default ttl.

`apply` polls for the result every half second by default. The interval is 1 ms here, because
otherwise request/response would only measure the interval."""

from __future__ import annotations

from typing import Any

from saq import Queue, Worker

from bench.adapter import PAYLOAD, RESULT, TASKS, AsyncAdapter, main, tick


async def noop(ctx: dict[str, Any], *, payload: str) -> int:
    tick()
    return RESULT


class Saq(AsyncAdapter):
    packages = ("saq", "redis", "hiredis")

    async def open(self) -> None:
        self.queue = Queue.from_url(self.url, name="bench", max_concurrent_ops=TASKS)
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
