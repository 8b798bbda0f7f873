"""pgqueuer on asyncpg, the driver of its quick start and its benchmark, with durable tables.

`batch_size` is the concurrency: it is how many jobs are fetched and acknowledged at once. Its own
cap on running jobs must be at least twice the batch, and is left out, which makes its query faster.
It stores no results. Request/response waits for the end of the job with its CompletionWatcher,
whose pause between two looks is 1 ms here instead of 50 ms. The worker then has a batch of 1,
because a larger one that is not full is acknowledged after 100 ms.
"""

from __future__ import annotations

from datetime import timedelta

import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.core.completion import CompletionWatcher
from pgqueuer.db import AsyncpgDriver, AsyncpgPoolDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries

from bench.adapter import PAYLOAD, AsyncAdapter, chunks, counter, main, tick

BODY = PAYLOAD.encode()


class Pgqueuer(AsyncAdapter):
    packages = ("pgqueuer", "asyncpg")
    watcher: CompletionWatcher | None = None

    async def prepare(self) -> None:
        connection = await asyncpg.connect(self.url)
        await Queries(AsyncpgDriver(connection)).install()
        await connection.close()

    async def open(self) -> None:
        self.pool = await asyncpg.create_pool(self.url, min_size=2, max_size=20)
        self.queries = Queries(AsyncpgPoolDriver(self.pool))

    async def close(self) -> None:
        if self.watcher:
            await self.watcher.__aexit__(None)
        self.pool.terminate()

    async def enqueue(self) -> object:
        return await self.queries.enqueue("noop", BODY)

    async def bulk(self, n: int) -> None:
        for size in chunks(n, 1000):
            await self.queries.enqueue(["noop"] * size, [BODY] * size, [0] * size)

    async def request(self) -> object:
        if self.watcher is None:
            driver = AsyncpgDriver(await asyncpg.connect(self.url))
            self.watcher = CompletionWatcher(
                driver, queries=self.queries, debounce=timedelta(milliseconds=1)
            )
            await self.watcher.__aenter__()
        (job,) = await self.queries.enqueue("noop", BODY)
        return await self.watcher.wait_for(job)

    async def work(self, concurrency: int) -> None:
        queuer = PgQueuer.from_asyncpg_pool(self.pool)

        @queuer.entrypoint("noop")
        async def noop(job: Job) -> None:
            tick()

        await queuer.run(batch_size=concurrency if counter.target else 1)


if __name__ == "__main__":
    main(Pgqueuer)
