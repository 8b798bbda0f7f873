"""Does a large backlog slow down draining and inserting? On Valkey.

    python -m bench.backlog                              1,000,000 waiting jobs, several minutes
    python -m bench.backlog --waiting 50000 --pairs 1    a quick test

Runs with a small and a large backlog alternate, and their medians are compared. CPU seconds are
those of the producer and the server. On a busy machine they are more reliable than the elapsed
time. Exit code 1 if a bound is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Iterable
from typing import NamedTuple

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from bench.keyed import cpu_seconds
from bench.measures import FIRST, backlog, values
from bench.places import place
from bench.roster import CONTENDERS
from jobq import JobOptions, Queue

DRAIN, INSERT = 0.10, 0.20
"""Bounds: how much slower draining the first jobs and inserting may be, as a share."""
OURS = CONTENDERS["jobq-valkey"]
PAYLOAD = "x" * 100
INSERTS: tuple[tuple[str, str, float | None], ...] = (
    ("priority", "waiting", INSERT),
    ("delayed", "waiting", INSERT),
    ("delayed", "delayed", None),
)
"""(inserted jobs, jobs that are there, bound). Inserts beside a million delayed jobs have no bound:
their index is a tree, and a deeper tree is slower."""


def options(kind: str, n: int) -> JobOptions:
    """The options of the nth job of a kind."""
    return {"delay": 3600 + n % 1000} if kind == "delayed" else {"priority": n % 100}


class Pair(NamedTuple):
    """Seconds per job with a small and with a large backlog."""

    few: float
    many: float


def drained(few: int, many: int) -> Pair:
    """Drain the first jobs of a small and a large backlog, each on a new server."""

    def seconds(waiting: int) -> float:
        ((_, _, rate),) = values(
            backlog(f"backlog{waiting}", waiting), OURS, n=1, loop="asyncio", versions={}
        )
        return 1 / rate

    return Pair(seconds(few), seconds(many))


async def inserted(
    kind: str, beside: str, waiting: int, inserts: int, pairs: int
) -> tuple[list[Pair], list[Pair]]:
    """Elapsed and CPU seconds per insert into an empty queue, and into one with `waiting` jobs."""
    elapsed, cpu = [], []
    with place("valkey", "valkey://127.0.0.1:{port}") as where:
        port: int = where.port  # type: ignore[attr-defined]
        async with Queue("full", where.url) as full:
            await put(full, beside, range(waiting))
            for n in range(pairs + 1):  # the first pair does not count: it opens connections
                async with Queue(f"empty {n}", where.url) as empty:
                    spent = []
                    for queue in (empty, full):
                        started, used = time.perf_counter(), cpu_seconds(port)
                        await put(queue, kind, range(inserts))
                        spent.append((time.perf_counter() - started, cpu_seconds(port) - used))
                if n:
                    elapsed.append(Pair(*(seconds / inserts for seconds, _ in spent)))
                    cpu.append(Pair(*(seconds / inserts for _, seconds in spent)))
    return elapsed, cpu


async def put(queue: Queue, kind: str, numbers: Iterable[int]) -> None:
    """Enqueue jobs of a kind."""
    await queue.enqueue_many(
        queue.task_by_name("noop", **options(kind, n)).bind(PAYLOAD) for n in numbers
    )


def main() -> None:
    """Measure, print the table, and exit with 1 if a bound is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--waiting", type=int, default=1_000_000, help="jobs in the large backlog (%(default)s)"
    )
    parser.add_argument(
        "--few", type=int, default=10_000, help="jobs in the small backlog (%(default)s)"
    )
    parser.add_argument("--pairs", type=int, default=3, help="pairs of runs (%(default)s)")
    parser.add_argument(
        "--inserts", type=int, default=20_000, help="jobs to insert per run (%(default)s)"
    )
    given = parser.parse_args()
    found: list[tuple[str, float | None, list[Pair]]] = []
    with Progress(transient=True) as progress:
        steps = progress.add_task("measuring", total=given.pairs + len(INSERTS))
        pairs = []
        for _ in range(given.pairs):
            pairs.append(drained(given.few, given.waiting))
            progress.advance(steps)
        found.append((f"drain of the first {FIRST:,}", DRAIN, pairs))
        for kind, beside, bound in INSERTS:
            elapsed, cpu = asyncio.run(
                inserted(kind, beside, given.waiting, given.inserts, 3 * given.pairs)
            )
            what = (
                f"{kind} inserts" if beside == "waiting" else f"{kind} inserts beside {beside} jobs"
            )
            found += [(what, bound, elapsed), (f"{what}, CPU", None, cpu)]
            progress.advance(steps)
    sys.exit(report(given.few, given.waiting, found))


def slower(pairs: list[Pair]) -> float:
    """How much slower the large backlog is, as a share, from the medians."""
    return (
        statistics.median(pair.many for pair in pairs)
        / statistics.median(pair.few for pair in pairs)
        - 1
    )


def report(few: int, many: int, found: list[tuple[str, float | None, list[Pair]]]) -> int:
    """Print the results with their bounds. Returns the exit code."""
    table = Table(title=f"with {many:,} waiting, against {few:,} (drain) or none (inserts), Valkey")
    for column in ("", "few, µs/job", "many, µs/job", "slower by", "bound"):
        table.add_column(column, justify="right" if column else "left")
    for what, bound, pairs in found:
        medians = [statistics.median(side) * 1e6 for side in zip(*pairs, strict=True)]
        limit = "" if bound is None else f"≤ {bound:.0%}"
        table.add_row(
            what, f"{medians[0]:.1f}", f"{medians[1]:.1f}", f"{slower(pairs):+.0%}", limit
        )
    Console().print(table)
    return 0 if all(bound is None or slower(pairs) <= bound for _, bound, pairs in found) else 1


if __name__ == "__main__":
    main()
