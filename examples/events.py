"""Events: everything that happened to a queue's jobs, from any point that is kept, and then as it happens."""

import asyncio

from jobq import Queue, Worker, current_job

tracked = Queue("tracked", "memory://")


@tracked.task(retry=1)
async def flaky() -> None:
    if current_job().attempt == 1:
        raise ValueError("the first try always fails")


async def history(after: str) -> str:
    """What happened, up to the first completion; where a later reader goes on."""
    async for event in tracked.events(after=after):
        print(
            f"{event.kind:<10} {event.previous or '-':>8} → {event.state:<10} attempt {event.attempt}"
        )
        if event.kind == "completed":
            return event.position
    raise AssertionError("events() has no end")


async def who_did_what() -> None:
    """What operators did to the queue and to its jobs, up to now."""
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
        print("and once more, from there:")
        await flaky.enqueue()
        await history(position)
        await who_did_what()


if __name__ == "__main__":
    asyncio.run(main())
