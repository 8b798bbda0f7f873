"""jobq's tasks in `forking.py` and `bench.executors`. Child processes import them by name."""

from __future__ import annotations

import os

from bench.ticks import Ticks
from jobq import Queue, Worker

queue = Queue("forking", "memory://forking")
plain = Queue("plain", "memory://forking")
_ticks = Ticks(os.environ.get("BENCH_TICKS", ""))


@queue.task(executor="process")
def noop(n: int) -> int:
    _ticks.tick()
    return n


@queue.task(executor="process")
def burn(n: int) -> int:
    total = 0
    for k in range(n):
        total += k * k
    _ticks.tick()
    return total


@plain.task
async def noop_inline(n: int) -> int:
    _ticks.tick()
    return n


async def main(url: str, folder: str, what: str, processes: int) -> None:
    """Enqueue jobs, or work."""
    queue._context.connection.move(url.replace("redis:", "valkey:"))
    os.environ["BENCH_TICKS"] = folder
    async with queue:
        if what == "work":
            await Worker(queue, pool=processes).run()
        else:
            await noop.enqueue_many((n,) for n in range(int(what)))
