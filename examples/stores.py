"""The same program on different stores: only the URL changes."""

import asyncio

from jobq import ConfigError, Queue, Worker

URLS = (
    "memory://",  # lost when the process ends: for tests
    "sqlite:///stores.db",  # a file: one machine, any number of processes
    "sqlite:///safe.db?synchronous=full",  # survives a power cut, with a sync per commit
)


async def round_trip(url: str) -> str:
    queue = Queue("round-trip", url)

    @queue.task
    async def greet(name: str) -> str:
        return f"hello from {name}"

    async with queue, Worker(queue):
        return await greet.call(url)


async def main() -> None:
    for url in URLS:
        print(await round_trip(url))
    try:
        await round_trip("mysql://localhost/jobs")
    except ConfigError as error:
        print(error)


if __name__ == "__main__":
    asyncio.run(main())
