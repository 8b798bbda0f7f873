"""Does a transaction that somebody holds open slow down claims? On PostgreSQL.

    python -m bench.pinned                   2 minutes without and 2 minutes with the transaction
    python -m bench.pinned --minutes 30 --clean 5
                                             as long as a report or pg_dump may take
    python -m bench.pinned --keys 100        jobs of a keyed queue, with this many keys in turn
    python -m bench.pinned --limit 50        at most this many jobs of the queue run at once
    python -m bench.pinned --option listen=no
                                             with options of the store's URL

An open transaction keeps its snapshot, so VACUUM cannot remove the rows of jobs that ended since. A
queue that reads past those rows becomes slower every minute. One process enqueues and runs jobs at
a fixed rate. Another process reads a table that has nothing to do with jobq. The second half of the
time with the transaction is compared with the whole time without it. Exit code 1 if a bound is
missed, or if the worker did not keep up.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from multiprocessing.connection import Connection
from typing import Any, Literal, NamedTuple

import psycopg
from rich.console import Console
from rich.table import Table

from bench.measures import percentiles
from bench.places import ask_postgres, postgres_database
from jobq import Queue, Worker
from jobq.stores.postgres.store import PostgresStore

CLAIM, NEIGHBOUR = 5.0, 1.2
"""Bounds: how many times as slow a claim's p99, and the other table's median, may become."""
BATCH_S = 0.01
"""Seconds between two calls of the producer, each of which enqueues the jobs of that time."""
NEIGHBOUR_S = 0.01
"""Seconds between two queries of the other table."""
NEIGHBOUR_ROWS = 100_000


class Sample(NamedTuple):
    """When something began, on the clock that all processes share, and how long it took."""

    at: float
    ms: float


class Load:
    """Jobs at a fixed rate, and what was measured of them."""

    def __init__(self, rate: int, keys: int = 0, limit: int | None = None) -> None:
        self.rate, self.keys, self.limit = rate, keys, limit
        self.claims: list[Sample] = []
        self.starts: list[Sample] = []
        self.enqueued = 0

    async def run(self, url: str, stopping: asyncio.Event) -> None:
        """Enqueue jobs until `stopping`, and run them."""
        mode: Literal["plain", "keyed"] = "keyed" if self.keys else "plain"
        queue = Queue("bench", url, mode=mode, limit=self.limit)

        async def noop(enqueued: float, key: str) -> int:
            now = time.monotonic()
            self.starts.append(Sample(enqueued, (now - enqueued) * 1000))
            return 1

        task = queue.task(key="key")(noop) if self.keys else queue.task(noop)
        async with queue, Worker(queue, concurrency=50):
            began = time.monotonic()
            while not stopping.is_set():
                now = time.monotonic()
                due = int((now - began) * self.rate) - self.enqueued
                if due > 0:
                    numbers = range(self.enqueued, self.enqueued + due)
                    await task.enqueue_many((now, str(n % (self.keys or 1))) for n in numbers)
                    self.enqueued += due
                await asyncio.sleep(BATCH_S)

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Measure every exchange with the store that claims jobs."""
        settle: Callable[..., Awaitable[Any]] = PostgresStore.settle

        async def measured(store: PostgresStore, *given: Any, **named: Any) -> Any:
            began = time.monotonic()
            settled = await settle(store, *given, **named)
            if settled.leases:
                self.claims.append(Sample(began, (time.monotonic() - began) * 1000))
            return settled

        PostgresStore.settle = measured  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            PostgresStore.settle = settle  # type: ignore[method-assign, assignment]


def neighbour(url: str, pipe: Connection) -> None:
    """Read another table until told to stop, then send the samples. A process of its own."""
    samples = []
    with psycopg.connect(url, autocommit=True) as connection:
        n = 0
        while not pipe.poll(NEIGHBOUR_S):
            n = (n * 31 + 17) % (NEIGHBOUR_ROWS - 100)
            began = time.monotonic()
            connection.execute(
                "select sum(balance) from accounts where id between %s and %s", (n, n + 99)
            ).fetchone()
            samples.append(Sample(began, (time.monotonic() - began) * 1000))
    pipe.send(samples)


@contextmanager
def other_table(url: str) -> Iterator[list[Sample]]:
    """A process that reads another table. The list has its samples after the context ends."""
    ask_postgres(
        url,
        "create table accounts as select n as id, n % 1000 as balance, repeat('x', 100) as note"
        f" from generate_series(1, {NEIGHBOUR_ROWS}) as n",
    )
    ask_postgres(url, "alter table accounts add primary key (id)")
    ask_postgres(url, "vacuum analyze accounts")
    found: list[Sample] = []
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=neighbour, args=(url, theirs))
    process.start()
    try:
        yield found
        ours.send("stop")
        if ours.poll(30):
            found += ours.recv()
    finally:
        process.join(10)
        process.kill()


async def measure(
    url: str, options: Sequence[str], clean: float, seconds: float, load: Load
) -> tuple[float, float, float]:
    """Run the load, whose URL has these options, without and with an open transaction.

    Returns when the first part began, when the transaction began, and when everything ended."""
    stopping = asyncio.Event()
    with_options = "&".join((url + ("" if "?" in url else "?"), *options))
    running = asyncio.create_task(load.run(with_options, stopping))
    warm_up = min(10.0, seconds / 4)
    await _either(running, warm_up)
    began = time.monotonic()
    await _either(running, clean)
    with closing(psycopg.connect(url)) as connection:
        connection.execute("set transaction isolation level repeatable read")
        connection.execute("select count(*) from pg_class")  # takes the snapshot
        pinned = time.monotonic()
        await _either(running, seconds)
    ended = time.monotonic()
    stopping.set()
    async with asyncio.timeout(120):
        await running
    return began, pinned, ended


async def _either(running: asyncio.Task[None], seconds: float) -> None:
    """Wait, but not after the load has failed."""
    await asyncio.wait({running}, timeout=seconds)
    if running.done():
        await running


def between(samples: list[Sample], start: float, end: float) -> list[float]:
    """The durations of what began in this time."""
    return [sample.ms for sample in samples if start <= sample.at < end]


class Row(NamedTuple):
    """What was measured, in milliseconds, and how many times as slow it may become."""

    what: str
    clean: float
    pinned: float
    bound: float | None

    @property
    def slower(self) -> float:
        return self.pinned / self.clean if self.clean else float("inf")


def rows(
    load: Load, neighbours: list[Sample], began: float, pinned: float, ended: float
) -> list[Row]:
    """Compare the time without the transaction with the second half of the time with it."""
    late = (pinned + ended) / 2
    found = []
    for what, samples, bounds in (
        ("claim", load.claims, (None, CLAIM)),
        ("enqueue to start", load.starts, (None, None)),
        ("query of another table", neighbours, (NEIGHBOUR, None)),
    ):
        clean = percentiles(between(samples, began, pinned) or [0.0])
        held = percentiles(between(samples, late, ended) or [float("inf")])
        for name, before, after, bound in zip(("p50", "p99"), clean, held, bounds, strict=True):
            found.append(Row(f"{what}, {name}", before, after, bound))
    return found


def report(title: str, found: list[Row]) -> int:
    """Print the table. Returns the exit code."""
    table = Table(title=title)
    for column in ("", "clean, ms", "open transaction, ms", "times as slow", "bound"):
        table.add_column(column, justify="right" if column else "left")
    for row in found:
        limit = "" if row.bound is None else f"≤ {row.bound:g}"
        table.add_row(row.what, f"{row.clean:.2f}", f"{row.pinned:.2f}", f"{row.slower:.2f}", limit)
    Console().print(table)
    return 0 if all(row.bound is None or row.slower <= row.bound for row in found) else 1


def main() -> None:
    """Measure, print the table, and exit with 1 if a bound is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--minutes", type=float, default=2.0, help="how long the transaction is open (%(default)s)"
    )
    parser.add_argument("--clean", type=float, help="minutes before it is opened (as many)")
    parser.add_argument("--rate", type=int, default=800, help="jobs per second (%(default)s)")
    parser.add_argument("--keys", type=int, default=0, help="keys of a keyed queue (none: plain)")
    parser.add_argument("--limit", type=int, help="jobs of the queue that run at once")
    parser.add_argument("--option", action="append", default=[], help="of the URL: listen=no")
    given = parser.parse_args()
    clean = given.minutes if given.clean is None else given.clean
    load = Load(given.rate, given.keys, given.limit)
    with postgres_database() as where:
        with other_table(where.url) as neighbours, load.timed():
            began, pinned, ended = asyncio.run(
                measure(where.url, given.option, clean * 60, given.minutes * 60, load)
            )
        dead = ask_postgres(
            where.url,
            "select string_agg(format('%s %s', relname, n_dead_tup), ', ' order by n_dead_tup desc)"
            " from pg_stat_user_tables where n_dead_tup > 1000",
        )
    done = len(between(load.starts, began, ended)) / (ended - began)
    title = f"{done:.0f} jobs/s, {clean:g} minutes clean, {given.minutes:g} with a transaction open"
    code = report(title, rows(load, neighbours, began, pinned, ended))
    print(f"dead rows at the end: {dead or 'none'}")
    if done < 0.95 * given.rate:
        print(f"the worker did not keep up: {done:.0f} of {given.rate} jobs per second")
        code = 1
    sys.exit(code)


if __name__ == "__main__":
    main()
