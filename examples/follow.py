"""Following a job: its state, progress and log lines, as they change, until it has ended."""

import asyncio

from jobq import Queue, Worker, current_job

reports = Queue("reports", "memory://")


@reports.task
async def build(pages: int) -> str:
    job = current_job()
    for page in range(1, pages + 1):
        await job.log(f"page {page} is ready")
        await job.progress({"page": page, "of": pages})
    return f"{pages} pages"


async def main() -> None:
    async with reports, Worker(reports):
        job = await build.enqueue(3)
        await follow(job.id)


async def follow(id: str) -> None:
    job = reports.job(id)
    async for update in job.follow(timeout=30):
        print(update.state, update.progress, *update.lines)
    print(update.info.result)


if __name__ == "__main__":
    asyncio.run(main())
