"""Workers: concurrency, stopping in two phases, pausing, and what a running job can know of itself."""

import asyncio

from jobq import Queue, Worker, current_job

work = Queue("work", "memory://")
running = asyncio.Event()


@work.task
async def quick(n: int) -> int:
    return n * n


@work.task
async def endless() -> str:
    if current_job().attempt == 2:
        return "finished by the second worker"
    running.set()
    await asyncio.Event().wait()
    raise AssertionError("never reached")


@work.task
def crunch(pages: int) -> int:
    job = current_job()
    for page in range(pages):
        if (
            job.cancelled
        ):  # a plain function has to look; an async one is interrupted at its next await
            break
        job.sync.progress({"page": page + 1, "of": pages})
        job.sync.log(f"page {page + 1} done")
    return pages


async def stopping() -> None:
    job = await endless.enqueue()
    worker = Worker(work, concurrency=10, drain=0.2)
    async with worker:
        await running.wait()
    # Leaving the block stopped the worker: it let jobs end for 0.2 s and then handed back what was left.
    info = await job.info()
    print(
        f"{info.state}, {info.failures} failures, {info.stalls} stalls: handing back costs nothing"
    )
    async with Worker(work):
        print(await job.result(timeout=10))


async def main() -> None:
    async with work:
        jobs = await quick.enqueue_many([(n,) for n in range(100)])
        async with Worker(work, concurrency=20):
            print(sum([await job.result(timeout=10) for job in jobs]))

            job = await crunch.enqueue(3)
            await job.wait(timeout=10)
            print((await job.info()).progress, await job.logs())

            await work.pause()
            held = await quick.enqueue(7)
            print(f"paused: {await held.state()}")
            await work.resume()
            print(await held.result(timeout=10))
        await stopping()


if __name__ == "__main__":
    asyncio.run(main())
