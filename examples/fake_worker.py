"""A test's worker against a real server: both in one process, on a store in memory."""

from __future__ import annotations

import asyncio

from jobq import Queue
from jobq.server.config import ServerSettings
from jobq.server.context import ServerContext
from jobq.server.host import Host
from jobq.server.workers import WorkerService
from jobq.stores import open_store
from jobq.testing import FakeWorker

URL = "memory://fake-worker"
mail = Queue("mail", URL)


@mail.task
async def send(to: str) -> dict[str, bool]:
    """Runs in the worker of another language."""
    raise NotImplementedError


async def main() -> None:
    async with open_store(URL) as store, mail:
        context = ServerContext(store, ServerSettings(grpc_port=0))
        async with Host(context, [WorkerService]) as host:
            address = f"127.0.0.1:{host.port}"
            job_handle = await send.enqueue("ada")
            async with FakeWorker(address, ["mail"], concurrency=2) as worker:
                job = await worker.job()
                print("received:", job.name, job.payload.decode())
                await worker.complete(job, {"sent": True})
            print("result:", await job_handle.result(timeout=10))


asyncio.run(main())
