"""Many jobs at once: select them by error, task or metadata, preview them, and change them."""

import asyncio

from jobq import Queue, Worker

orders = Queue("orders", "memory://")
warehouse_replies = False


@orders.task(retry=0)
async def ship(order: int) -> str:
    if not warehouse_replies and order % 2:
        raise TimeoutError("the warehouse does not reply")
    return f"order {order} is on its way"


async def rerun() -> None:
    global warehouse_replies
    jobs = await ship.enqueue_many([(n,) for n in range(10)])
    for job in jobs:
        await job.wait(timeout=10)
    warehouse_replies = True

    timed_out = orders.select("failed", name="ship*", error="Timeout*")
    preview = await timed_out.preview()
    print(f"{preview.matched} jobs match, for example {preview.samples[0].id}")

    done = await timed_out.rerun(pace=200)  # jobs per second
    print(f"{done.changed} jobs run again")
    print(await jobs[0].result(timeout=10))


async def cancel() -> None:
    later = ship.options(delay=3600, meta={"tenant": "globex"})
    await later.enqueue_many([(n,) for n in range(25)])

    unwanted = orders.select("waiting", "delayed", meta={"tenant": "globex"})
    first = await unwanted.cancel(max_jobs=10)
    rest = await unwanted.cancel(cursor=first.cursor)
    print(f"{first.changed} + {rest.changed} jobs cancelled")


async def main() -> None:
    async with orders, Worker(orders):
        await rerun()
        await cancel()


if __name__ == "__main__":
    asyncio.run(main())
