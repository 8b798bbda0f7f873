"""What does order per key cost? Drains the same jobs from a plain and a keyed queue, in turns.

    python -m bench.keyed                  memory://
    python -m bench.keyed sqlite           a new file for each run
    python -m bench.keyed valkey           a new server for each run
    python -m bench.keyed valkey://…       an existing store; its two bench queues are obliterated

Each run has its own process. CPU seconds are those of this process and, with `valkey`, of the
server. On a busy machine they are more reliable than the elapsed time.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import time

from rich.console import Console
from rich.progress import track
from rich.table import Table

from bench.places import ask, place
from jobq import Queue, Worker

JOBS, KEYS, PAIRS = 100_000, 10_000, 5
URLS = {
    "memory": "memory://bench-keyed",
    "sqlite": "sqlite:///{folder}/jobs.db",
    "valkey": "valkey://127.0.0.1:{port}",
}


async def drain(url: str, kind: str, server: int | None) -> tuple[float, float]:
    """Drain the queue. Returns elapsed and CPU seconds from the worker's start to its end."""
    queue = Queue(f"bench-{kind}", url, mode="keyed" if kind == "keyed" else "plain")
    left, done = JOBS, asyncio.Event()

    async def noop(tenant: str) -> int:
        nonlocal left
        left -= 1
        if not left:
            done.set()
        return 1

    task = queue.task(key="tenant")(noop) if kind == "keyed" else queue.task(noop)
    async with queue:
        await queue.obliterate(force=True)
        await task.enqueue_many((f"tenant {n % KEYS}",) for n in range(JOBS))
        started, cpu = time.perf_counter(), cpu_seconds(server)
        async with Worker(queue, concurrency=100), asyncio.timeout(600):
            await done.wait()
        return time.perf_counter() - started, cpu_seconds(server) - cpu


def cpu_seconds(server: int | None) -> float:
    """CPU seconds used by this process and by the Valkey server on this port."""
    used = time.process_time()
    if server is not None:
        figures = dict(line.split(":") for line in ask(server, "INFO cpu").split() if ":" in line)
        used += float(figures["used_cpu_user"]) + float(figures["used_cpu_sys"])
    return used


def measured(where: str, kind: str) -> tuple[float, float]:
    """One run, in its own process and with a new store."""
    with place(where if where in URLS else "given", URLS.get(where, where)) as fresh:
        command = [
            sys.executable,
            "-m",
            "bench.keyed",
            fresh.url,
            kind,
            str(getattr(fresh, "port", "")),
        ]
        answer = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    elapsed, cpu = json.loads(answer.stdout)
    return elapsed, cpu


def main() -> None:
    """Measure both kinds of queues alternately and print the ratios."""
    if len(sys.argv) > 2:
        url, kind, port = sys.argv[1:]
        print(json.dumps(asyncio.run(drain(url, kind, int(port) if port else None))))
        return
    where = sys.argv[1] if len(sys.argv) > 1 else "memory"
    console = Console()
    table = Table(title=f"{JOBS:,} jobs over {KEYS:,} keys, concurrency 100, {where}")
    for column in (
        "plain, s",
        "keyed, s",
        "keyed / plain",
        "plain, CPU s",
        "keyed, CPU s",
        "keyed / plain",
    ):
        table.add_column(column, justify="right")
    pairs = []
    for n in track(range(PAIRS), "pairs", console=console, transient=True):
        # Neither is always the first of a pair.
        order = ("plain", "keyed") if n % 2 == 0 else ("keyed", "plain")
        run = {kind: measured(where, kind) for kind in order}
        figures = zip(run["plain"], run["keyed"], strict=True)
        pairs.append(
            [figure for plain, keyed in figures for figure in (plain, keyed, keyed / plain)]
        )
        table.add_row(*(f"{figure:.2f}" for figure in pairs[-1]))
    medians = [statistics.median(column) for column in zip(*pairs, strict=True)]
    table.add_section()
    table.add_row(*(f"{figure:.2f}" for figure in medians), style="bold")
    console.print(table)
    console.print(
        f"keyed / plain, median of {PAIRS} pairs: {medians[2]:.2f} elapsed, {medians[5]:.2f} CPU"
    )


if __name__ == "__main__":
    main()
