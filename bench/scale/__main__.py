"""Where does a large installation grow faster than linearly? A simulation with measured costs.

    python -m bench.scale                       1 to 100 primaries, up to 10,000 workers
    python -m bench.scale --primaries 30 --svg docs/scale-growth.svg

It counts calls as the code makes them: how a worker claims and falls asleep (engine/fetcher.py,
stores/valkey/settling.py), who is woken (lua/signals.lua), and how many connections a worker opens.
Each call takes a place in the queue of its primary for as long as was measured. Two layouts grow
side by side: one queue whose partitions are on all primaries, and one queue per tenant, each with
workers of its own. Then a primary is lost for some seconds.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.scale.plot import svg
from bench.scale.run import JOBS_PER_S, LOST_S, SUPERLINEAR, WORKERS, Found, exponents, simulate
from jobq.operations.capacity import default_measured, read_measured

SIZES = (1, 3, 10, 30, 100)
"""Primaries."""


def report(title: str, found: list[Found]) -> list[str]:
    """Print a table. Returns the figures per job that grow."""
    table = Table(title=title)
    columns = {
        "primaries": "primaries", "workers": "workers", "server_us": "µs/job",
        "calls": "calls/job", "looks": "reads/job", "busiest": "busiest", "home": "presence",
        "wait_p50": "wait p50", "wait_p99": "p99", "connections": "connections",
    }  # fmt: skip
    for column in columns.values():
        table.add_column(column, justify="right")
    for row in found:
        table.add_row(
            f"{row.primaries:,}", f"{row.workers:,}", f"{row.server_us:,.0f}", f"{row.calls:,.1f}",
            f"{row.looks:,.1f}", f"{row.busiest:.1%}", f"{row.home:.1%}", f"{row.wait_p50:.2f} ms",
            f"{row.wait_p99:.2f} ms", f"{row.connections:,}",
        )  # fmt: skip
    Console(width=120).print(table)
    return [
        name
        for name in ("server_us", "calls", "looks")
        if len(found) > 1 and exponents(found, name) > SUPERLINEAR
    ]


def main() -> None:
    """Simulate all sizes, print tables, and say what grows faster than linearly."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--primaries", type=int, default=SIZES[-1], help="the largest size")
    options.add_argument("--measured", type=Path, metavar="FILE", help="costs of another machine")
    options.add_argument("--seconds", type=float, default=2.0, help="of simulated time")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--svg", type=Path, metavar="FILE", help="draw the growth")
    given = options.parse_args()
    measured = default_measured() if given.measured is None else read_measured(given.measured)
    sizes = [size for size in SIZES if size <= given.primaries]
    layouts = {}
    for name, shared in (("one queue", True), ("a queue per tenant", False)):
        found = [
            simulate(size, measured, shared=shared, seconds=given.seconds, seed=given.seed)
            for size in sizes
        ]
        grows = report(f"{name}: {JOBS_PER_S:g} jobs/s and {WORKERS} workers per primary", found)
        print(f"{name}: grows faster than linearly: {', '.join(grows) or 'nothing'}")
        layouts[name] = found
    if given.svg is not None:
        given.svg.write_text(svg(layouts))
    size = min(10, sizes[-1])
    for name, shared in (("one queue", True), ("a queue per tenant", False)):
        after = simulate(size, measured, shared=shared, seed=given.seed, lost=True, rate=50)
        print(
            f"{name}, {size} primaries, one of them lost for {LOST_S:g} s: "
            f"{after.done:.0%} of the jobs of that time started"
        )
    sys.exit(0)


if __name__ == "__main__":
    main()
