"""Schedules: cron times and intervals. Each time fires once, with any number of workers."""

import asyncio
from datetime import UTC, datetime, timedelta

from jobq import Cron, Every, Queue, Worker, testing

bank = Queue("bank", "memory://")
fetched = asyncio.Semaphore(0)


@bank.task(schedule=Cron("0 6 * * 1-5", tz="Europe/Zurich"))
async def digest() -> str:
    return "good morning"


# The interval counts from the end of the last job, so runs never overlap.
@bank.task(schedule=Every(0.2, after_complete=True))
async def fetch() -> None:
    fetched.release()


@bank.task
async def remind(customer: str) -> str:
    return f"{customer} was reminded"


async def at_run_time() -> None:
    """Create and change schedules, with arguments, at run time."""
    await bank.schedule(
        "remind-ada", Every(timedelta(days=7), times=4, catch_up="one"), remind, "ada"
    )
    await bank.schedule(
        "remind-ada", Every(timedelta(days=7), times=4, catch_up="one"), remind, "ada"
    )  # changes nothing
    for info in await bank.schedules():
        when = "after its job" if info.next_at is None else "at a fixed time"
        print(f"{info.id}: {info.name}{info.args}, next {when}")

    job = await bank.run_schedule("remind-ada")  # now, in addition to its times
    print(await job.result(timeout=10))
    await bank.pause_schedule("remind-ada")
    await bank.resume_schedule("remind-ada")
    await bank.unschedule("remind-ada")


async def tested() -> None:
    """In a test you move the clock, and `drain` fires schedules that are due."""
    monday = datetime(2026, 3, 2, 4, 59, tzinfo=UTC)
    async with testing.use(bank, clock=testing.FakeClock(monday)) as jobs:
        jobs.clock.advance(60)  # six o'clock in Zurich
        await jobs.drain()
        print(f"at {jobs.clock.now():%H:%M} UTC: {len(await jobs.enqueued(digest))} digest")


async def main() -> None:
    async with bank, Worker(bank):
        for _ in range(2):
            await fetched.acquire()
        print("fetched twice")
        await at_run_time()
    await tested()


if __name__ == "__main__":
    asyncio.run(main())
