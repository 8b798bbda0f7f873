"""Results: waiting for one, request/response, and every way a wait can end."""

import asyncio

from jobq import JobCancelled, JobFailed, Queue, Reject, WaitTimeout, Worker

sums = Queue("sums", "memory://")


@sums.task
async def add(a: int, b: int) -> int:
    return a + b


@sums.task(retry=0)
async def divide(a: int, b: int) -> float:
    if b == 0:
        raise Reject("b must not be 0")
    return a / b


@sums.task
async def for_ever() -> None:
    await asyncio.Event().wait()


async def request_response() -> None:
    print(await add.call(1, 2))
    print(await add.options(call_timeout=5).call(3, 4))


async def handles() -> None:
    job = await add.enqueue(20, 22)
    print(await job.result(timeout=10))
    info = await job.info()
    print(info.state, info.attempt, info.result)

    same = sums.job(job.id)  # from the id alone, in another process or another week
    print(await same.result(timeout=10))


async def endings() -> None:
    try:
        await divide.call(1, 0)
    except JobFailed as error:
        print(f"failed: {error.failure.reason}, {error.failure.message}")

    job = await for_ever.enqueue()
    try:
        await job.result(timeout=0.05)
    except WaitTimeout:
        print(f"still {await job.state()}: a wait that ends cancels nothing")

    await job.cancel()
    try:
        await job.result(timeout=10)
    except JobCancelled:
        print("cancelled")


async def cached() -> None:
    task = add.options(id="once", result_ttl=3600)
    await task.call(5, 6)
    again = await task.enqueue(5, 6)
    assert again.snapshot
    print(f"duplicate, and its result is here already: {again.snapshot.result}")


async def main() -> None:
    async with sums, Worker(sums):
        await request_response()
        await handles()
        await endings()
        await cached()


if __name__ == "__main__":
    asyncio.run(main())
