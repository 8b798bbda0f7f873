"""Where handlers run: in child processes, and as programs of their own."""

import asyncio
import importlib
import os
import sys
from pathlib import Path

from jobq import JobFailed, Queue, Retry, Worker, current_job

queue = Queue("pictures", "sqlite:///pictures.db")


@queue.task(executor="process", timeout=60, grace=2)
def blur(width: int, height: int) -> int:
    print(f"blurring {width} × {height} pixels")  # a line of the job's log
    current_job().sync.progress(50)
    return sum(x * y for x in range(width) for y in range(height))


@queue.task(executor="process", retry=Retry(1, base=0))
def fragile() -> str:
    if current_job().attempt == 1:
        os._exit(1)  # as a crash of a C library would
    return "the second attempt worked"


@queue.task(executor="process", timeout=0.2, grace=0.2, retry=0)
def endless() -> None:
    while True:
        pass


COUNT = "import json, sys; print(len(json.load(sys.stdin)['text'].split()))"
count_words = queue.command("count_words", [sys.executable, "-c", COUNT, "{text}"], timeout=30)

# All tasks of this queue run in child processes, unless they say otherwise.
reports = Queue("reports", "sqlite:///pictures.db", executor="process")


async def main() -> None:
    async with queue, reports, Worker(queue, reports, pool=2, grace=5):
        job = await blur.enqueue(300, 200)
        print("blurred:", await job.result(timeout=30), await job.logs())
        print(await fragile.call())
        print("words:", await count_words.call(text="one two three"))
        try:
            await endless.call()
        except JobFailed as error:
            print(error.failure.reason, error.failure.message)


if __name__ == "__main__":
    # Child processes import tasks by the name of their module. A program that is started as a
    # script has no such name, so this one imports itself.
    asyncio.run(importlib.import_module(Path(__file__).stem).main())
