"""What a taskiq application does, with jobq: typed tasks, dependencies, labels, schedules."""

import asyncio
from collections.abc import AsyncIterator

from jobq import Cron, Depends, Queue, Worker, current_job

broker = Queue("default", "memory://")
events: list[str] = []


async def database() -> AsyncIterator[str]:
    events.append("open")
    yield "database"
    events.append("close")


@broker.task(retry=3)  # @broker.task(retry_on_error=True, max_retries=3)
async def add(a: int, b: int, db: str = Depends(database)) -> int:  # TaskiqDepends(database)
    events.append(f"{current_job().meta['user']} adds in the {db}")  # context.message.labels
    return a + b


@broker.task(schedule=Cron("*/5 * * * *"))  # schedule=[{"cron": "*/5 * * * *"}]
async def refresh() -> None: ...


async def main() -> None:
    async with broker, Worker(broker):  # broker.startup(); taskiq worker app:broker
        task = add.options(meta={"user": "ada"})  # add.kicker().with_labels(user="ada")
        job = await task.enqueue(1, 2)  # .kiq(1, 2)
        print(await job.result(timeout=10))  # (await task.wait_result(timeout=10)).return_value
    print(*events, sep=", ")


if __name__ == "__main__":
    asyncio.run(main())
