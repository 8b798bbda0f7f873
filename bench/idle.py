"""What do idle workers cost a server, and how many does one job wake?

    python -m bench.idle                               1,000 workers in 4 processes, on Valkey
    python -m bench.idle --workers 200 --processes 2
    python -m bench.idle --on jq-server                on a jq-server with a SQLite file

Every worker is a `Worker` with its own name, keeper thread and connections. Several share a
process, so that one machine can run a thousand. Each has a different URL, so that they share no
store handle. The benchmark starts its own server. For Valkey it counts commands, for jq-server CPU
and memory. Exit code 1 if a bound is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from bench.places import ask, place, valkey_server
from bench.server import running_server
from jobq import Queue, Worker

OPS, WOKEN = 1.0, 2
"""Bounds: commands per worker and second, and workers woken by one job."""
WOKEN_BY_SQLITE = 5
"""The worker that is woken, and two that look 250 ms and 1 s later because it may be frozen. Jobs
are half a second apart, so two looks may belong to the job before."""
QUEUE = "idle"
ENQUEUES = 20  # jobs that are enqueued to count the workers they wake
_SENT = ("fcall", "blpop", "ping", "subscribe")
"""Commands that only clients send, not functions on the server."""


# ── a process of the fleet ────────────────────────────────────────────────────────────────────────


class Counter:
    """Counts how often sleeping workers of this process were woken."""

    def __init__(self) -> None:
        self.woken = 0

    def watch(self, sleep: Callable[..., Awaitable[bool]]) -> Callable[..., Awaitable[bool]]:
        async def counted(*args: Any, **kwargs: Any) -> bool:
            woken = await sleep(*args, **kwargs)
            self.woken += woken
            return woken

        return counted


async def fleet(url: str, first: int, count: int) -> None:
    """Run workers until standard input ends.

    Prints "ready" when all have started, and replies to each line with the wake-ups so far."""
    counter = Counter()
    lines = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    async with AsyncExitStack() as stack:
        for n in range(first, first + count):
            # A different URL for each worker, so that it has its own store handle.
            queue = Queue(QUEUE, f"{url}?timeout={10 + n / 1e6:f}")
            queue.task(name="noop")(_noop)
            store = await (await stack.enter_async_context(queue))._context.store()
            store.sleep = counter.watch(store.sleep)  # type: ignore[method-assign, assignment]
            await stack.enter_async_context(Worker(queue, concurrency=1, name=f"idle-{n}"))
        print("ready", flush=True)
        while await lines.readline():
            print(counter.woken, flush=True)


async def _noop(n: int) -> None: ...


class Process:
    """A process of the fleet, as seen by the benchmark."""

    def __init__(self, url: str, first: int, count: int) -> None:
        command = [sys.executable, "-m", "bench.idle", "--fleet", url, str(first), str(count)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def line(self) -> str:
        """Read the next line of its output."""
        assert self._process.stdout is not None
        said = self._process.stdout.readline().strip()
        if not said:
            raise SystemExit(f"a process of the fleet ended with exit code {self._process.wait()}")
        return said

    def woken(self) -> int:
        """How often its workers were woken so far."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return int(self.line())


# ── measurements ──────────────────────────────────────────────────────────────────────────────


def calls(port: int) -> dict[str, int]:
    """How often the server executed each command, and all of them (`all`)."""
    found = {"all": int(ask(port, "INFO stats").split("total_commands_processed:")[1].split()[0])}
    for line in ask(port, "INFO commandstats").split():
        if line.startswith("cmdstat_"):
            name, _, rest = line.removeprefix("cmdstat_").partition(":calls=")
            found[name] = int(rest.partition(",")[0])
    return found


def rates(port: int, workers: int, seconds: float) -> dict[str, float]:
    """Commands per worker and second while nothing happens."""
    before, started = calls(port), time.monotonic()
    for _ in track(range(int(seconds)), description="idle"):
        time.sleep(1)
    after, passed = calls(port), time.monotonic() - started
    return {name: (n - before.get(name, 0)) / workers / passed for name, n in after.items()}


async def wakes(url: str, processes: Sequence[Process]) -> list[int]:
    """The number of workers that each job wakes. Jobs are enqueued one at a time."""
    found = []
    async with Queue(QUEUE, url) as queue:
        for n in track(range(ENQUEUES), description="waking"):
            before = sum(process.woken() for process in processes)
            await queue.task_by_name("noop").enqueue(n)
            await asyncio.sleep(0.5)  # by then, all workers that this job wakes are awake
            found.append(sum(process.woken() for process in processes) - before)
        counts = await queue.counts()
    if counts["completed"] != ENQUEUES:  # type: ignore[index]
        raise SystemExit(f"not all jobs have ended: {counts}")
    return found


def main() -> None:
    """Start the fleet, measure, print the table, and exit with 1 if a bound is missed."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument(
        "--on",
        choices=["valkey", "jq-server"],
        default="valkey",
        help="server that the workers use (%(default)s)",
    )
    options.add_argument(
        "--workers", type=int, default=1000, help="number of workers (%(default)s)"
    )
    options.add_argument(
        "--processes", type=int, default=4, help="processes that run them (%(default)s)"
    )
    options.add_argument(
        "--seconds", type=float, default=30, help="how long to count commands (%(default)s)"
    )
    options.add_argument(
        "--settle",
        type=float,
        default=40,
        help="pause after the start of the last worker (%(default)s)",
    )
    options.add_argument(
        "--fleet", nargs=3, metavar=("URL", "FIRST", "COUNT"), help=argparse.SUPPRESS
    )
    given = options.parse_args()
    if given.fleet:
        url, first, count = given.fleet
        asyncio.run(fleet(url, int(first), int(count)))
        return
    each = given.workers // given.processes
    workers = each * given.processes
    with ExitStack() as stack:
        if given.on == "valkey":
            port = stack.enter_context(valkey_server())
            url = f"valkey://127.0.0.1:{port}"
        else:
            where = stack.enter_context(place("sqlite", "sqlite:///{folder}/jobs.db"))
            server = stack.enter_context(running_server(where.url))
            url = server.url
        processes = [
            stack.enter_context(Process(url, n * each, each)) for n in range(given.processes)
        ]
        for process in track(processes, description=f"starting {workers} workers"):
            process.line()
        time.sleep(given.settle)
        if given.on == "valkey":
            clients = int(ask(port, "INFO clients").split("connected_clients:")[1].split()[0])
            idle = rates(port, workers, given.seconds)
            woken = asyncio.run(wakes(url, processes))
            sys.exit(report(workers, clients, idle, woken))
        share = busy(server.pid, given.seconds)
        memory = resident(server.pid)
        woken = asyncio.run(wakes(url, processes))
        sys.exit(report_server(workers, share, memory, woken))


def busy(pid: int, seconds: float) -> float:
    """The share of one core that a process uses while nothing happens."""
    before, started = _cpu_seconds(pid), time.monotonic()
    for _ in track(range(int(seconds)), description="idle"):
        time.sleep(1)
    return (_cpu_seconds(pid) - before) / (time.monotonic() - started)


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident(pid: int) -> int:
    """The memory of a process in bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def report_server(workers: int, share: float, memory: int, woken: list[int]) -> int:
    """Print what a jq-server costs. Returns the exit code."""
    table = Table(title=f"{workers:,} idle workers on one jq-server with a SQLite file")
    for column in ("", "found", "bound"):
        table.add_column(column, justify="right" if column else "left")
    table.add_row("CPU of the server, share of one core", f"{share:.0%}", "")
    table.add_row("memory of the server", f"{memory / 2**20:,.0f} MiB", "")
    table.add_row("memory per worker", f"{memory / workers / 1024:,.0f} KiB", "")
    table.add_row("workers woken by one job, median", f"{statistics.median(woken):g}", "")
    table.add_row("workers woken by one job, most", f"{max(woken)}", f"≤ {WOKEN_BY_SQLITE}")
    Console().print(table)
    return 0 if max(woken) <= WOKEN_BY_SQLITE else 1


def report(workers: int, clients: int, idle: dict[str, float], woken: list[int]) -> int:
    """Print the results with their bounds. Returns the exit code."""
    sent = sum(idle.get(name, 0) for name in _SENT)
    table = Table(title=f"{workers:,} idle workers on one Valkey, {clients:,} connections")
    for column in ("", "found", "bound"):
        table.add_column(column, justify="right" if column else "left")
    table.add_row(
        "commands per worker and second, with those inside functions",
        f"{idle['all']:.2f}",
        f"≤ {OPS:g}",
    )
    table.add_row("of these sent by workers", f"{sent:.2f}", "")
    for name, rate in sorted(idle.items(), key=lambda item: -item[1]):
        if name != "all" and rate >= 0.005:
            table.add_row(f"    {name}", f"{rate:.2f}", "", style="bright_black")
    table.add_row("workers woken by one job, median", f"{statistics.median(woken):g}", f"≤ {WOKEN}")
    table.add_row("workers woken by one job, most", f"{max(woken)}", f"≤ {WOKEN}")
    Console().print(table)
    return 0 if idle["all"] <= OPS and max(woken) <= WOKEN else 1


if __name__ == "__main__":
    main()
