"""What a BullMQ application does, with jobq: progress, flows, deduplication, schedulers, events."""

import asyncio
from datetime import timedelta

from jobq import Cron, Queue, Rate, Retry, Unique, Worker, current_job

video = Queue(
    "video", "memory://", rate=Rate(1000, per=1)
)  # limiter: { max: 1000, duration: 1000 }


@video.task(
    retry=Retry(2, base=1, factor=2),  # attempts: 3, backoff: { type: "exponential", delay: 1000 }
    unique=Unique("path", mode="debounce", period=0.05),  # deduplication: { id, ttl, replace }
)
async def transcode(path: str, quality: int) -> str:  # new Worker("video", async job => …)
    job = current_job()
    await job.progress(50)  # job.updateProgress(50)
    await job.log(f"quality {quality}")  # job.log(…)
    return f"{path}@{quality}"


@video.task
async def publish(parts: list[str]) -> str:
    return " + ".join(parts)


@video.task(schedule=Cron("15 3 * * *"))  # queue.upsertJobScheduler("clean", { pattern: … })
async def clean() -> None: ...


async def main() -> None:
    async with video, Worker(video, concurrency=50):  # { concurrency: 50 }
        await transcode.enqueue("cat.mp4", 480)  # queue.add("transcode", { … })
        job = await transcode.enqueue("cat.mp4", 720)  # replaces the first call
        async for update in job.follow(timeout=10):  # queueEvents.on("progress", …)
            last = update
        print(last.info.result, last.progress, await job.logs())

        later = transcode.options(id="dog", delay=timedelta(hours=1), priority=10)  # jobId, delay
        dog = await later.enqueue("dog.mp4", 720)
        print(await dog.promote(), await dog.result(timeout=10))  # job.promote()

        async with video.flow() as flow:  # flowProducer.add({ …, children: [ … ] })
            parts = [flow.add(transcode, f"part{n}.mp4", 720) for n in (1, 2)]
            whole = flow.add(publish, [part.ref for part in parts])  # job.getChildrenValues()
        print(await whole.result(timeout=10))


if __name__ == "__main__":
    asyncio.run(main())
