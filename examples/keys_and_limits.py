"""Keyed queues and limits: order and fairness per tenant, and how many jobs may run or start."""

import asyncio
from collections.abc import Sequence

from jobq import Bucket, Job, Queue, QueueFull, Rate, RateLimited, Worker, current_job

deliveries = Queue("deliveries", "memory://", mode="keyed", key_limit=1)
reports = Queue("reports", "memory://", limit=2)
calls = Queue("calls", "memory://", rate=Rate(3, per=0.2))
exports = Queue("exports", "memory://", rate=Bucket(10, refill=100))
thumbnails = Queue("thumbnails", "memory://", max_waiting=3)

order: list[str] = []
running = highest = 0


@deliveries.task(key="tenant")
async def deliver(tenant: str, n: int) -> None:
    order.append(f"{tenant}{n}")


@reports.task
async def report(n: int) -> None:
    global running, highest
    running += 1
    highest = max(highest, running)
    await asyncio.sleep(0)
    running -= 1


@calls.task
async def call(n: int) -> int:
    if n == 0 and current_job().attempt == 1:
        # The service is overloaded: hold the queue. This job runs first and loses no retry.
        raise RateLimited(0.05)
    return n


@exports.task
async def export(rows: int) -> int:
    return rows


@thumbnails.task
async def thumbnail(n: int) -> None: ...


async def ended(jobs: Sequence[Job[object]]) -> None:
    for job in jobs:
        await job.wait(timeout=10)


async def main() -> None:
    async with (
        deliveries,
        reports,
        calls,
        exports,
        thumbnails,
        Worker(deliveries, reports, calls, exports),
    ):
        await deliveries.pause()
        jobs = await deliver.enqueue_many([("a", 1), ("a", 2), ("a", 3), ("b", 1), ("c", 1)])
        await deliveries.resume()
        await ended(jobs)
        print(f"a, b and c take turns: {' '.join(order)}")

        await ended(await report.enqueue_many([(n,) for n in range(20)]))
        print(f"at most {highest} reports at a time")

        await ended(await call.enqueue_many([(n,) for n in range(6)]))
        print("six calls, three per window")

        print(await export.options(cost=10).call(1000))

        try:
            await thumbnail.enqueue_many([(n,) for n in range(5)])
        except QueueFull as full:
            print(
                f"{len(full.accepted)} accepted, {full.refused} refused, at most {full.max_waiting}"
            )

        await deliveries.set_limits(key_limit=5, key="a")  # at run time, for one key
        print((await deliveries.limits()).keys)

        await deliveries.hold(60, key="b")  # this tenant's service is down
        print(f"held: {', '.join((await deliveries.limits()).held_keys)}")
        await deliveries.release_hold(key="b")  # the service works again


if __name__ == "__main__":
    asyncio.run(main())
