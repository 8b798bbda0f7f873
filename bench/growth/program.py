"""The workers of bench/growth/workers.py, in processes of their own.

python -m bench.growth.program overloaded URL SECONDS    prints its memory in kB, every 0.2 s
python -m bench.growth.program poisoned URL LEDGER       works until it is killed
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from jobq import Queue, Worker, current_job

CONCURRENCY = 10
QUEUE = "work"


def rss_kb() -> int:
    """The resident memory of this process in kB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


async def overloaded(url: str, seconds: float) -> None:
    """Run jobs that take longer than it takes to put them."""
    queue = Queue(QUEUE, url)

    @queue.task(name="slow")
    async def slow(text: str) -> None:
        await asyncio.sleep(0.05)

    async with queue, Worker(queue, concurrency=CONCURRENCY):
        for _ in range(int(seconds / 0.2)):
            await asyncio.sleep(0.2)
            print(rss_kb(), flush=True)


async def poisoned(url: str, ledger: str) -> None:
    """Run jobs, some of which kill this process. Each run is written down first."""
    queue = Queue(QUEUE, url)
    file = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    @queue.task(name="poison")
    async def poison() -> None:
        os.write(file, f"poison {current_job().id}\n".encode())
        os._exit(9)

    @queue.task(name="neighbour")
    async def neighbour() -> None:
        os.write(file, f"neighbour {current_job().id}\n".encode())
        await asyncio.sleep(0.02)

    async with queue:
        await Worker(queue, concurrency=CONCURRENCY, lease=1).run()


if __name__ == "__main__":
    what, url, rest = sys.argv[1:]
    asyncio.run(overloaded(url, float(rest)) if what == "overloaded" else poisoned(url, rest))
