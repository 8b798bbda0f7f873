"""Whether a long line slows anything down: on Valkey, the first jobs of a backlog, and inserts beside one.

    python -m bench.backlog                                 1,000,000 waiting, some minutes
    python -m bench.backlog --waiting 50000 --pairs 1       to see that it works

Each pair is measured in turns, with little and with much waiting, and the medians are compared. CPU seconds are those of the
producer and the server: on a busy machine they say more than the elapsed time. Exit code 1 if a bound is missed.
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
"""How much slower it may be: the drain of the first jobs, and inserts."""
OURS = CONTENDERS["jobq-valkey"]
PAYLOAD = "x" * 100
INSERTS: tuple[tuple[str, str, float | None], ...] = (
    ("priority", "waiting", INSERT),
    ("delayed", "waiting", INSERT),
    ("delayed", "delayed", None),
)
"""What is inserted, beside what, and the bound. Beside a million delayed jobs there is none: their index is a tree, and that
it is deeper is to be seen."""


def options(kind: str, n: int) -> JobOptions:
    """Of the n-th job of a kind."""
    return {"delay": 3600 + n % 1000} if kind == "delayed" else {"priority": n % 100}


class Pair(NamedTuple):
    """Seconds per job with little waiting and with much."""

    few: float
    many: float


def drained(few: int, many: int) -> Pair:
    """The first jobs of both lines, each on a server of its own."""

    def seconds(waiting: int) -> float:
        ((_, _, rate),) = values(
            backlog(f"backlog{waiting}", waiting), OURS, n=1, loop="asyncio", versions={}
        )
        return 1 / rate

    return Pair(seconds(few), seconds(many))


async def inserted(
    kind: str, beside: str, waiting: int, inserts: int, pairs: int
) -> tuple[list[Pair], list[Pair]]:
    """Elapsed and CPU seconds per insert into an empty queue and beside so many jobs."""
    elapsed, cpu = [], []
    with place("valkey", "valkey://127.0.0.1:{port}") as where:
        port: int = where.port  # type: ignore[attr-defined]
        async with Queue("full", where.url) as full:
            await put(full, beside, range(waiting))
            for n in range(pairs + 1):  # the first does not count: connections, the allocator
                async with Queue(f"empty {n}", where.url) as empty:
                    spent = []
                    for queue in (empty, full):
                        begun, used = time.perf_counter(), cpu_seconds(port)
                        await put(queue, kind, range(inserts))
                        spent.append((time.perf_counter() - begun, cpu_seconds(port) - used))
                if n:
                    elapsed.append(Pair(*(seconds / inserts for seconds, _ in spent)))
                    cpu.append(Pair(*(seconds / inserts for _, seconds in spent)))
    return elapsed, cpu


async def put(queue: Queue, kind: str, numbers: Iterable[int]) -> None:
    """So many jobs of a kind."""
    await queue.enqueue_many(
        queue.task_by_name("noop", **options(kind, n)).bind(PAYLOAD) for n in numbers
    )


def main() -> None:
    """Measure in turns, print, judge."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--waiting", type=int, default=1_000_000)
    parser.add_argument("--few", type=int, default=10_000)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--inserts", type=int, default=20_000)
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
    """By how much it is slower with much waiting: of the medians."""
    return (
        statistics.median(pair.many for pair in pairs)
        / statistics.median(pair.few for pair in pairs)
        - 1
    )


def report(few: int, many: int, found: list[tuple[str, float | None, list[Pair]]]) -> int:
    """What was found, against the bounds; the exit code. CPU seconds are shown beside."""
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
