"""Does a large backlog slow down claims, and does its space come back? On PostgreSQL.

    python -m bench.backlog_postgres              10,000,000 waiting jobs, and 1,000,000 drained
    python -m bench.backlog_postgres --rows 100000 --drained 20000                a quick test

Two databases of one server have a small and a large backlog. Claims of both alternate, and their
medians are compared. Then another queue is filled and drained, twice, and the sizes of the tables
that hold waiting and active jobs are compared. Exit code 1 if a bound is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from bench.drive import started
from bench.measures import Session
from bench.places import Postgres, ask_postgres, postgres_database
from bench.roster import CONTENDERS
from jobq.core.records.jobs import Claim, Complete, Lease, QueueName
from jobq.stores import open_store

CLAIM = 1.3
"""Bound: how many times as slow a claim may be beside the large backlog."""
SPACE = 1.0
"""Bound: the share of the full queue's space that the drained queue may take after VACUUM. Indexes
keep their pages, which are free for new jobs."""
GROWTH = 1.2
"""Bound: how many times as much space the queue may take after it was drained a second time."""
BATCH = 100
"""Jobs per claim."""
FEW = 10_000
OURS = CONTENDERS["jobq-postgres"]
HOT = "relname like 'jobs_hot%' or relname in ('keys', 'locks', 'holds', 'edges', 'sleepers')"
"""The tables whose size must not depend on the jobs that have ended."""


@contextmanager
def backlog(rows: int) -> Iterator[Postgres]:
    """A database with this many waiting jobs, statistics and a checkpoint."""
    with postgres_database() as where:
        session = Session(contender=OURS, n=rows, loop="uvloop", versions={})
        session.run(where, do="prepare")
        for start in range(0, rows, 1_000_000):  # a process that fills has ten minutes
            session.run(where, do="fill", n=min(1_000_000, rows - start))
        ask_postgres(where.url, "vacuum analyze")
        where.filled()
        yield where


async def claims(few: str, many: str, rounds: int) -> tuple[list[float], list[float]]:
    """Milliseconds per exchange that completes a batch and claims the next one, for both."""
    took: tuple[list[float], list[float]] = ([], [])
    async with open_store(few) as first, open_store(many) as second:
        held: list[list[Complete]] = [[], []]
        for n in range(rounds + 5):  # the first exchanges do not count: they prepare statements
            for side, store in enumerate((first, second)):
                claim = Claim(queues=(QueueName("default", "bench"),), limit=BATCH, lease_ms=60_000)
                began = time.perf_counter()
                settled = await store.settle(
                    held[side], worker="bench", call=f"call {n}", then=claim
                )
                if n >= 5:
                    took[side].append((time.perf_counter() - began) * 1000)
                assert len(settled.leases) == BATCH, "the backlog is too small for the rounds"
                held[side] = [_completed(lease) for lease in settled.leases]
    return took


def _completed(lease: Lease) -> Complete:
    return Complete(queue=lease.queue, id=lease.id, token=lease.token, result=b"42")


class Sizes(NamedTuple):
    """Bytes of the hot tables with their indexes, and of everything."""

    hot: int
    all: int


class Cycle(NamedTuple):
    """The sizes of a full queue, of the drained queue, and after VACUUM."""

    full: Sizes
    drained: Sizes
    vacuumed: Sizes


def sizes(where: Postgres) -> Sizes:
    """The sizes now."""
    hot = ask_postgres(
        where.url,
        "select sum(pg_total_relation_size(oid))::bigint from pg_class"
        f" where relkind = 'r' and relnamespace = 'jobq'::regnamespace and ({HOT})",
    )
    return Sizes(hot or 0, where.bytes_used())


def drained(rows: int) -> list[Cycle]:
    """Fill and drain a queue twice, with a VACUUM each time, as autovacuum does in the end."""
    found = []
    with postgres_database() as where:
        session = Session(contender=OURS, n=rows, loop="uvloop", versions={})
        session.run(where, do="prepare")
        for _ in range(2):
            session.run(where, do="fill", n=rows)
            full = sizes(where)
            work = {"do": "work", "concurrency": 100, "target": rows}
            with started(OURS, where, work, loop="uvloop") as worker:
                worker.answer(3600)
                _until_settled(where)
            empty = sizes(where)
            ask_postgres(where.url, "vacuum")
            found.append(Cycle(full, empty, sizes(where)))
    return found


def _until_settled(where: Postgres, timeout: float = 60) -> None:
    """Wait until the last results are stored. The worker replies a moment before."""
    end = time.monotonic() + timeout
    while ask_postgres(where.url, "select 1 from jobq.jobs_hot limit 1"):
        if time.monotonic() > end:
            raise TimeoutError("the worker did not finish its last jobs")
        time.sleep(0.1)


def report(rows: int, took: tuple[list[float], list[float]], cycles: list[Cycle]) -> int:
    """Print the claims and the sizes. Returns the exit code."""
    console = Console()
    few, many = (statistics.median(side) for side in took)
    console.print(
        f"a claim of {BATCH} jobs: {few:.2f} ms at {FEW:,} rows, {many:.2f} ms at {rows:,} rows: "
        f"{many / few:.2f} times (≤ {CLAIM:g})"
    )
    table = Table(title="sizes with indexes, MB")
    for column in ("", "waiting and active jobs", "everything"):
        table.add_column(column, justify="right" if column else "left")
    for n, cycle in enumerate(cycles, 1):
        for what, size in zip(Cycle._fields, cycle, strict=True):
            table.add_row(f"{what} ({n})", f"{size.hot / 1e6:.1f}", f"{size.all / 1e6:.1f}")
    console.print(table)
    first, last = cycles[0], cycles[-1]
    share, growth = first.vacuumed.hot / first.full.hot, last.vacuumed.hot / first.vacuumed.hot
    console.print(
        f"the drained queue takes {share:.0%} of the full one (≤ {SPACE:.0%}), "
        f"and {growth:.2f} times as much after the second time (≤ {GROWTH:g})"
    )
    return 0 if many / few <= CLAIM and share <= SPACE and growth <= GROWTH else 1


def main() -> None:
    """Measure, print the tables, and exit with 1 if a bound is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--rows",
        type=int,
        default=10_000_000,
        help="waiting jobs of the large backlog (%(default)s)",
    )
    parser.add_argument(
        "--drained", type=int, default=1_000_000, help="jobs to drain for the sizes (%(default)s)"
    )
    parser.add_argument("--rounds", type=int, default=60, help="claims of each (%(default)s)")
    given = parser.parse_args()
    if given.rounds > FEW // BATCH - 10:
        parser.error(f"--rounds: the small backlog has jobs for {FEW // BATCH - 10} claims")
    with backlog(FEW) as few, backlog(given.rows) as many:
        took = asyncio.run(claims(few.url, many.url, given.rounds))
    sys.exit(report(given.rows, took, drained(given.drained)))


if __name__ == "__main__":
    main()
