"""arq with hiredis. Results are stored for an hour, its default. Jobs are not logged.

Its worker polls every half second by default. The interval is 1 ms here, because otherwise
request/response would only measure the interval.
"""

from __future__ import annotations

import logging
from typing import Any

from arq import create_pool
from arq.connections import RedisSettings
from arq.worker import Worker

from bench.adapter import PAYLOAD, RESULT, AsyncAdapter, main, tick


async def noop(ctx: dict[str, Any], payload: str) -> int:
    tick()
    return RESULT


class Arq(AsyncAdapter):
    packages = ("arq", "redis", "hiredis")

    async def open(self) -> None:
        self.settings = RedisSettings.from_dsn(self.url)
        self.pool = await create_pool(self.settings)

    async def close(self) -> None:
        await self.pool.aclose()

    async def enqueue(self) -> object:
        return await self.pool.enqueue_job("noop", PAYLOAD)

    async def request(self) -> object:
        job = await self.pool.enqueue_job("noop", PAYLOAD)
        return await job.result(timeout=30, poll_delay=0.001)

    async def work(self, concurrency: int) -> None:
        logging.getLogger("arq").setLevel(logging.WARNING)
        worker = Worker(
            functions=[noop],
            redis_settings=self.settings,
            max_jobs=concurrency,
            poll_delay=0.001,
            log_results=False,
        )
        await worker.async_run()


if __name__ == "__main__":
    main(Arq)
