"""A worker process for the fault tests: `python app.py URL NAME`.

Handlers take a few milliseconds, so that some are running when the process is killed.
"""

from __future__ import annotations

import asyncio
import random
import sys

from jobq import Queue, Retry, Worker, current_job

queue = Queue("faults", sys.argv[1] if len(sys.argv) > 1 else "memory://", tenant="faults")


@queue.task(retry=Retry(5, base=0.05), max_stalls=1000)
async def work(n: int) -> int:
    await asyncio.sleep(random.random() / 50)
    if n % 50 == 0 and current_job().attempt == 1:
        raise ValueError("the first time")
    return n


if __name__ == "__main__":
    asyncio.run(Worker(queue, concurrency=20, lease=2, drain=5, name=sys.argv[2]).run())
