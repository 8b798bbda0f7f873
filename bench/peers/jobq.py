"""jobq's public API, on any store. With memory://, the worker runs in the producer's process."""

from __future__ import annotations

import json
import sys

from bench.adapter import PAYLOAD, RESULT, AsyncAdapter, main, tick
from jobq import JobOptions, Queue, Worker

# bench.compare also runs checkouts that call the option `wait`.
_CALL_TIMEOUT = "call_timeout" if "call_timeout" in JobOptions.__annotations__ else "wait"

URL = json.loads(sys.argv[1])["url"]
queue = Queue("bench", URL)


@queue.task
async def noop(payload: str) -> int:
    tick()
    return RESULT


class Jobq(AsyncAdapter):
    packages = ("jobq",)
    worker: Worker | None = None

    async def prepare(self) -> None:
        async with queue:
            await queue.stats()

    async def open(self) -> None:
        await queue.__aenter__()
        if URL.startswith("memory:") and json.loads(sys.argv[1])["do"] == "request":
            self.worker = Worker(queue, concurrency=10)
            await self.worker.__aenter__()

    async def close(self) -> None:
        if self.worker:
            await self.worker.__aexit__(None, None, None)
        await queue.aclose()

    async def enqueue(self) -> object:
        return await noop.enqueue(PAYLOAD)

    async def bulk(self, n: int) -> None:
        await noop.enqueue_many(
            (PAYLOAD,) for _ in range(n)
        )  # jobq splits this into calls of 1,000

    async def request(self) -> object:
        return await noop.options(**{_CALL_TIMEOUT: 30}).call(PAYLOAD)

    async def work(self, concurrency: int) -> None:
        await Worker(queue, concurrency=concurrency).run()


if __name__ == "__main__":
    main(Jobq)
