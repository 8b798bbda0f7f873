"""Results: wait for a result, request/response, and all the ways in which a wait can end."""

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
async def forever() -> None:
    await asyncio.Event().wait()


async def request_response() -> None:
    print(await add.call(1, 2))
    print(await add.options(call_timeout=5).call(3, 4))


async def handles() -> None:
    job = await add.enqueue(20, 22)
    print(await job.result(timeout=10))
    info = await job.info()
    print(info.state, info.attempt, info.result)

    same = sums.job(job.id)  # the id is enough, also in another process or much later
    print(await same.result(timeout=10))


async def endings() -> None:
    try:
        await divide.call(1, 0)
    except JobFailed as error:
        print(f"failed: {error.failure.reason}, {error.failure.message}")

    job = await forever.enqueue()
    try:
        await job.result(timeout=0.05)
    except WaitTimeout:
        print(f"still {await job.state()}: a timeout of the wait does not cancel the job")

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
    print(f"a duplicate, with the result of the first job: {again.snapshot.result}")


async def main() -> None:
    async with sums, Worker(sums):
        await request_response()
        await handles()
        await endings()
        await cached()


if __name__ == "__main__":
    asyncio.run(main())
