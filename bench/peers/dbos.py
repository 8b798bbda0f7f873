"""DBOS: a durable workflow without steps per job, with results, in a queue of its own.

The worker runs async workflows and polls every 1 ms, the shortest interval, instead of every
second. Its client has no bulk call. Waiting for a result polls as well: 1 ms instead of 1 s.
"""

from __future__ import annotations

import asyncio

from dbos import DBOS, DBOSClient

from bench.adapter import PAYLOAD, RESULT, AsyncAdapter, main, tick

OPTIONS = {"queue_name": "bench", "workflow_name": "noop", "app_version": "1"}


@DBOS.workflow(name="noop")
async def noop(payload: str) -> int:
    tick()
    return RESULT


class Dbos(AsyncAdapter):
    packages = ("dbos", "psycopg", "sqlalchemy")
    client: DBOSClient | None = None

    @property
    def address(self) -> str:
        return self.url.replace("postgresql://", "postgresql+psycopg://")

    async def launch(self, concurrency: int) -> None:
        DBOS(
            config={
                "name": "bench",
                "system_database_url": self.address,
                "sys_db_pool_size": 20,
                "application_version": "1",
                "log_level": "ERROR",
            }
        )
        DBOS.launch()
        await DBOS.register_queue_async(
            "bench", worker_concurrency=concurrency, polling_interval_sec=0.001
        )

    async def prepare(self) -> None:
        await self.launch(1)
        DBOS.destroy()

    async def open(self) -> None:
        self.client = DBOSClient(system_database_url=self.address, system_database_pool_size=20)

    async def close(self) -> None:
        if self.client:
            self.client.destroy()

    async def enqueue(self) -> object:
        assert self.client
        return await self.client.enqueue_async(OPTIONS, PAYLOAD)

    async def request(self) -> object:
        assert self.client
        handle = await self.client.enqueue_async(OPTIONS, PAYLOAD)
        return await handle.get_result(polling_interval_sec=0.001)

    async def work(self, concurrency: int) -> None:
        await self.launch(concurrency)
        await asyncio.Event().wait()


if __name__ == "__main__":
    main(Dbos)
