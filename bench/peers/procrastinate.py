"""procrastinate with its PsycopgConnector, a pool of 20 connections, and its defaults.

The worker listens for notifications, which is its default. It stores no results and cannot wait for
a job, so request/response is not measured. Finished jobs stay in its table, as by default.
"""

from __future__ import annotations

import json
import logging
import sys

import procrastinate

from bench.adapter import PAYLOAD, RESULT, AsyncAdapter, Unsupported, chunks, main, tick

URL = json.loads(sys.argv[1])["url"]
# Of 10, 20 and 100 connections, 20 had the best median at concurrency 100 (2 cores).
app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=URL, max_size=20))
logging.getLogger("procrastinate").setLevel(logging.WARNING)


@app.task(name="noop")
async def noop(payload: str) -> int:
    tick()
    return RESULT


class Procrastinate(AsyncAdapter):
    packages = ("procrastinate", "psycopg")

    async def prepare(self) -> None:
        async with app.open_async():
            await app.schema_manager.apply_schema_async()

    async def open(self) -> None:
        await app.open_async()

    async def close(self) -> None:
        await app.close_async()

    async def enqueue(self) -> object:
        return await noop.defer_async(payload=PAYLOAD)

    async def bulk(self, n: int) -> None:
        for size in chunks(n, 1000):
            await noop.batch_defer_async(*({"payload": PAYLOAD} for _ in range(size)))

    async def request(self) -> object:
        raise Unsupported("no results, and no way to wait for a job")

    async def work(self, concurrency: int) -> None:
        await app.run_worker_async(concurrency=concurrency, install_signal_handlers=False)


if __name__ == "__main__":
    main(Procrastinate)
