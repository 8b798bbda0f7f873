"""The tasks of the end-to-end tests. As a program, it runs a worker for them."""

from __future__ import annotations

import asyncio
import os

from jobq import Queue, Retry, Snooze, Worker, current_job

drill = Queue("drill", os.environ.get("JQ_URL"))
second = Queue("second", os.environ.get("JQ_URL"))


@drill.task(retry=Retry(3, base=0.05))
async def shaky(n: int) -> int:
    """Every 5th job fails once, every 50th for good, and every 7th is snoozed once."""
    await asyncio.sleep(0.002)
    attempt = current_job().attempt
    if n % 50 == 0 or (n % 5 == 0 and attempt == 1):
        raise ValueError(f"{n} failed")
    if n % 7 == 0 and attempt == 1:
        raise Snooze(0.05)
    return n


@second.task
async def steady(n: int) -> int:
    """A slow job."""
    await asyncio.sleep(0.01)
    return n


if __name__ == "__main__":
    asyncio.run(Worker(drill, second, concurrency=8, lease=2).run())
