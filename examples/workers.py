"""Workers: concurrency, graceful shutdown, pausing, progress and logs of a running job."""

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
        if job.cancelled:  # only plain functions must check; jobq interrupts async ones
            break
        job.sync.progress({"page": page + 1, "of": pages})
        job.sync.log(f"page {page + 1} done")
    return pages


async def stopping() -> None:
    job = await endless.enqueue()
    worker = Worker(work, concurrency=10, drain=0.2)
    async with worker:
        await running.wait()
    # Leaving the block stops the worker: it waits 0.2 s for running jobs and releases the rest.
    info = await job.info()
    print(f"released: {info.state}, {info.failures} failures, {info.stalls} stalls")
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
