"""Does anything grow with the size of a store? Each measure is taken at two or three sizes.

    python -m bench.growth                        SQLite, Valkey and PostgreSQL, up to an hour
    python -m bench.growth --quick                smaller sizes, a few minutes
    python -m bench.growth --only keys,week --store sqlite

A store is filled for each size, the same calls are made on all of them in turns, and the fastest
of each are compared. Times are processor time of the client and the server. The tables show each
measure at each size, and the ratio of the last to the first. Exit code 1 if a bound is exceeded.
The figures are added to out/growth/growth.json, and `python -m bench.growth.page` writes
docs/growth.md and its plots from them.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from rich.console import Console

from bench.growth.compared import URLS, Dimension
from bench.growth.figures import Run
from bench.growth.jobs import Flows, Keys, Payloads, Submits, Waiting
from bench.growth.names import Queues, Schedules
from bench.growth.report import report, table
from bench.growth.week import Week
from bench.growth.workers import Overload, Poison

T = TypeVar("T")

DIMENSIONS: dict[str, Dimension] = {
    each.name: each
    for each in (
        Waiting(),
        Queues(),
        Schedules(),
        Keys(),
        Submits(),
        Flows(),
        Payloads(),
        Overload(),
        Poison(),
        Week(),
    )
}


def main(arguments: list[str] | None = None) -> int:
    """Measure, print tables, and return 1 if a bound is exceeded."""
    given = _parser().parse_args(arguments)
    console = Console()
    began = datetime.now(UTC).isoformat(timespec="seconds")
    run = Run.new(quick=given.quick, began=began)
    if given.out.exists() and (before := Run.load(given.out)).quick == given.quick:
        run.figures = before.figures
    measured = Run.new(quick=given.quick, began=began)
    for dimension in given.only:
        for store in given.store:
            if store not in dimension.stores:
                continue
            started = time.monotonic()
            sizes = dimension.quick if given.quick else dimension.sizes
            sizes = tuple(size for size in sizes if size <= given.largest) or sizes[:1]
            found = asyncio.run(
                dimension.measure(store, sizes, given.rounds or dimension.rounds, console.log)
            )
            console.print(table(dimension, found))
            console.log(f"{dimension.name}, {store}: {time.monotonic() - started:.0f} s")
            measured.add(found)
            run.add(found)
            run.save(given.out)
    return report(measured, console)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.growth",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--store",
        type=lambda text: _several(text, {each: each for each in URLS}),
        default=list(URLS),
        help=f"stores, separated by commas: {', '.join(URLS)} (all)",
    )
    parser.add_argument(
        "--only",
        type=lambda text: _several(text, DIMENSIONS),
        default=list(DIMENSIONS.values()),
        help=f"what grows, separated by commas: {', '.join(DIMENSIONS)} (all)",
    )
    parser.add_argument("--quick", action="store_true", help="smaller sizes, for a few minutes")
    parser.add_argument(
        "--largest", type=float, default=float("inf"), help="leave out sizes above this one"
    )
    parser.add_argument("--rounds", type=int, help="rounds of calls (each measure has its own)")
    parser.add_argument(
        "--out", type=Path, default=Path("out/growth/growth.json"), help="%(default)s"
    )
    return parser


def _several(text: str, known: dict[str, T]) -> list[T]:
    names = text.split(",")
    if unknown := [name for name in names if name not in known]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is not one of {', '.join(known)}")
    return [known[name] for name in names]


if __name__ == "__main__":
    sys.exit(main())
