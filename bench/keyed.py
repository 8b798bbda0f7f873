"""What order per key costs: the same jobs from a plain and from a keyed queue, in turns. `python -m bench.keyed [URL]`."""

from __future__ import annotations

import asyncio
import statistics
import sys
import time

from rich.console import Console
from rich.progress import track
from rich.table import Table

from jobq import Queue, Worker

JOBS, KEYS, PAIRS = 100_000, 10_000, 3


async def drain(url: str, *, keyed: bool) -> float:
    """Seconds from the worker's start to the last job."""
    queue = Queue(f"bench-{'keyed' if keyed else 'plain'}", url, mode="keyed" if keyed else "plain")
    left, done = JOBS, asyncio.Event()

    async def noop(tenant: str) -> int:
        nonlocal left
        left -= 1
        if not left:
            done.set()
        return 1

    task = queue.task(key="tenant")(noop) if keyed else queue.task(noop)
    async with queue:
        await queue.obliterate(force=True)
        await task.enqueue_many((f"tenant {n % KEYS}",) for n in range(JOBS))
        begun = time.perf_counter()
        async with Worker(queue, concurrency=100), asyncio.timeout(600):
            await done.wait()
        return time.perf_counter() - begun


def main() -> None:
    """Measure in turns and print the ratio."""
    url = sys.argv[1] if len(sys.argv) > 1 else "memory://bench-keyed"
    console = Console()
    table = Table("plain, s", "keyed, s", "keyed / plain", title=f"{JOBS:,} jobs over {KEYS:,} keys, concurrency 100, {url}")
    ratios = []
    for _ in track(range(PAIRS), "pairs", console=console, transient=True):
        plain, keyed = asyncio.run(drain(url, keyed=False)), asyncio.run(drain(url, keyed=True))
        ratios.append(keyed / plain)
        table.add_row(f"{plain:.2f}", f"{keyed:.2f}", f"{ratios[-1]:.2f}")
    console.print(table)
    console.print(f"median {statistics.median(ratios):.2f}")


if __name__ == "__main__":
    main()
