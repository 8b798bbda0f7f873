"""What an arq application does, with jobq: coroutines, resources from start-up, cron jobs."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta

from jobq import Cron, Queue, Retry, Worker, current_job

web = Queue("web", "memory://")


@dataclass
class Resources:
    pages: dict[str, str]


@asynccontextmanager
async def lifespan() -> AsyncIterator[Resources]:  # on_startup, on_shutdown
    yield Resources({"https://example.org": "an example"})


@web.task(retry=4, timeout=300)  # max_tries=5, job_timeout=300
async def download(url: str) -> int:  # async def download(ctx, url)
    job = current_job()
    if job.attempt == 1:  # ctx["job_try"]
        raise Retry.after(0.01)  # raise Retry(defer=0.01)
    return len(job.lifespan(Resources).pages[url])  # ctx["pages"][url]


@web.task(schedule=Cron("0 9,18 * * *"))  # cron(refresh, hour={9, 18}, minute=0)
async def refresh() -> None: ...


async def main() -> None:
    async with web, Worker(web, lifespan=lifespan, concurrency=10):  # max_jobs=10
        job = await download.enqueue("https://example.org")  # redis.enqueue_job("download", …)
        print(await job.result(timeout=10))  # job.result(timeout=10)

        once = download.options(id="nightly", delay=timedelta(hours=1))  # _job_id=, _defer_by=
        await once.enqueue("https://example.org")
        again = await once.enqueue("https://example.org")
        print(again.duplicate)  # enqueue_job returns None
        print(await again.cancel())  # job.abort()


if __name__ == "__main__":
    asyncio.run(main())
