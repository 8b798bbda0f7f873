"""Compare this checkout with another one: is a hot path slower?

    git worktree add /tmp/before v0.1.0
    python -m bench.compare /tmp/before                            all stores, about 20 minutes
    python -m bench.compare /tmp/before --store valkey --pairs 3   one store

Both checkouts alternate, in new processes and with a new store each time, and the result is the
ratio of each pair. So a disturbance that lasts longer than a pair affects both sides. A ratio above
1 means that this checkout is faster. Exit code 1 if a median is below the bound.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from bench.measures import MEASURES, Measure, values
from bench.roster import CONTENDERS, ROOT, Contender

BOUND = 0.95  # the lowest median ratio to pass: differences below 5 % are noise
STORES = {
    "memory": "jobq-memory",
    "sqlite": "jobq-sqlite",
    "valkey": "jobq-valkey",
    "postgres": "jobq-postgres",
}
HOT = ("one", "concurrent", "bulk", "drain1", "drain10", "drain100", "request")
SECONDS = 1.0
"""Duration of one run: long enough to warm up caches, short enough for many pairs."""


def measured(measure: Measure, contender: Contender, n: int, loop: str) -> float:
    """Measure one value. Times are inverted, so that more is always better."""
    _, unit, value = next(values(measure, contender, n=n, loop=loop, versions={}))
    return value if unit == "/s" else 1 / value


def size(measure: Measure, contender: Contender, loop: str) -> int:
    """The number of operations that take about SECONDS."""
    if measure.fixed:
        return measure.probe
    rate = measured(measure, contender, measure.probe, loop)
    return int(min(measure.max_n, max(measure.probe, rate * SECONDS)))


def ratios(
    measure: Measure, before: Contender, after: Contender, pairs: int, loop: str
) -> list[float]:
    """The ratio of after to before, for each pair. The side that runs first alternates."""
    n, found = size(measure, before, loop), []
    for pair in range(pairs):
        sides = (before, after) if pair % 2 == 0 else (after, before)
        taken = {side.name: measured(measure, side, n, loop) for side in sides}
        found.append(taken[after.name] / taken[before.name])
    return found


def main() -> None:
    """Measure, print the table, and exit with 1 if a median is below the bound."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("before", type=Path, help="another checkout of jobq")
    parser.add_argument(
        "--store", action="append", choices=sorted(STORES), default=[], help="default: all"
    )
    parser.add_argument("--measure", action="append", choices=HOT, default=[], help="default: all")
    parser.add_argument("--pairs", type=int, default=7, help="pairs per value (%(default)s)")
    parser.add_argument("--loop", default="asyncio", choices=("asyncio", "uvloop"))
    given = parser.parse_args()
    if not (given.before / "src" / "jobq").is_dir():
        parser.error(f"{given.before} is not a checkout of jobq: it has no folder src/jobq")
    stores, keys = given.store or list(STORES), given.measure or list(HOT)
    table = Table(
        title=f"this checkout over {given.before.name}, {given.pairs} pairs; above 1 is faster"
    )
    for column in ("store", "", "median", "lowest", "highest"):
        table.add_column(
            column, justify="right" if column.endswith("t") or column == "median" else "left"
        )
    slow = 0
    with Progress(transient=True) as progress:
        steps = progress.add_task("measuring", total=len(stores) * len(keys))
        for store in stores:
            ours = CONTENDERS[STORES[store]]
            before = replace(ours, name="before", source=given.before.resolve())
            after = replace(ours, name="after", source=ROOT)
            for key in keys:
                measure = MEASURES[key]
                found = ratios(measure, before, after, given.pairs, given.loop)
                median = statistics.median(found)
                slow += median < BOUND
                mark = f"[red]{median:.2f}[/red]" if median < BOUND else f"{median:.2f}"
                table.add_row(
                    store, measure.rows[0][0], mark, f"{min(found):.2f}", f"{max(found):.2f}"
                )
                progress.advance(steps)
    Console().print(table)
    sys.exit(1 if slow else 0)


if __name__ == "__main__":
    main()
