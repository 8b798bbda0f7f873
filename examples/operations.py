"""Operations from Python: rerun, reprioritise, cancel, inspect and purge jobs, as jq-ctl does."""

import asyncio

from jobq import Queue, State, Worker

orders = Queue("orders", "memory://")
open_for_business = False


@orders.task(retry=0)
async def ship(order: int) -> str:
    if not open_for_business:
        raise RuntimeError("the warehouse is closed")
    return f"order {order} is on its way"


async def dead_letters() -> None:
    """Failed jobs stay in the queue until they are rerun, removed or purged."""
    global open_for_business
    jobs = await ship.enqueue_many([(n,) for n in range(5)])
    for job in jobs:
        await job.wait(timeout=10)
    async for info in orders.find(state=State.FAILED, max_jobs=2):
        assert info.failure
        print(f"dead letter: {info.name}{info.args}: {info.failure.message}")

    open_for_business = True
    await orders.remove(jobs[0].id)
    print(f"{await orders.rerun()} jobs run again")
    print(await orders.job(jobs[1].id).result(timeout=10))


async def single_jobs() -> None:
    job = await ship.options(delay=3600).enqueue(10)
    await job.reprioritise(5)
    await job.update(11)  # new arguments
    await job.reschedule(delay=1800)
    await job.promote()  # now
    print(await job.result(timeout=10))

    unwanted = await ship.options(delay=3600).enqueue(12)
    print(f"{await unwanted.cancel()=}, {await unwanted.state()}")


async def looking() -> None:
    counts = await orders.counts()
    print({state.value: n for state, n in counts.items() if n})
    stats = await orders.stats()
    print(f"paused: {stats.paused}, workers: {stats.workers}")
    for minute in await orders.metrics(minutes=5):
        print(f"accepted {minute.accepted}, completed {minute.completed}, failed {minute.failed}")
        break


async def clearing() -> None:
    await ship.options(delay=3600).enqueue_many([(n,) for n in range(20)])
    print(f"{await orders.purge('waiting', 'delayed', 'blocked')} cancelled before their start")
    print(f"{await orders.purge('completed', older_than=0)} completed jobs removed")


async def main() -> None:
    async with orders, Worker(orders):
        await dead_letters()
        await single_jobs()
        await looking()
        await clearing()


if __name__ == "__main__":
    asyncio.run(main())
