"""Events: read what happened to a queue's jobs, from any stored position, and follow new events."""

import asyncio

from jobq import Queue, Worker, current_job

tracked = Queue("tracked", "memory://")


@tracked.task(retry=1)
async def flaky() -> None:
    if current_job().attempt == 1:
        raise ValueError("the first try always fails")


async def history(after: str) -> str:
    """Print events up to the first completion. Returns the position to continue from."""
    async for event in tracked.events(after=after):
        change = f"{event.previous or '-':>8} → {event.state:<10}"
        print(f"{event.kind:<10} {change} attempt {event.attempt}")
        if event.kind == "completed":
            return event.position
    raise AssertionError("events() has no end")


async def who_did_what() -> None:
    """Print what operators did to the queue and its jobs."""
    ann = tracked.as_actor("ann@example.com")
    await ann.pause()
    job = await flaky.enqueue()
    await job.as_actor("bob@example.com").cancel()
    await ann.resume()
    async for event in tracked.events(after="0", follow=False):
        if event.actor is not None:
            print(f"{event.number:>2} {event.kind} by {event.actor}")


async def main() -> None:
    async with tracked, Worker(tracked):
        await flaky.enqueue()
        position = await history("0")
        print("again, from that position:")
        await flaky.enqueue()
        await history(position)
        await who_did_what()


if __name__ == "__main__":
    asyncio.run(main())
