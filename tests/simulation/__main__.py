"""`make simulate SEEDS=10000`: run many seeds, make failing ones small, and tell their story."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tests.simulation.scenario import draw
from tests.simulation.seeds import Counted, fails, run_part, run_seed, shrink, timeline

CHUNK = 20
"""Seeds that a process runs at a time."""
MEMORY = "/dev/shm"
"""A folder in memory, on Linux."""
LINE = 100
"""Seeds per line of output that goes to a file."""
MOST = 5
"""Failing seeds after which the search stops."""


def main() -> int:
    """Run what the command line says. Returns 1 if a seed fails."""
    options = _options()
    if os.path.isdir(MEMORY):  # the databases of worlds need not wait for a disk
        os.environ.setdefault("TMPDIR", MEMORY)
    if options.seed is not None:
        return _one(options.seed, options.store, shrinks=not options.whole, all=options.all)
    console = Console()
    failed: dict[int, tuple[str, ...]] = {}
    totals = [0, 0, 0, 0.0]
    done = 0
    with Progress(
        TextColumn("simulating"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[found]} fail"),
        TimeRemainingColumn(),
        console=console,
    ) as progress:
        bar = progress.add_task("seeds", total=options.seeds, found=0)
        for seeds, found, counted in _chunks(options):
            failed |= found
            totals = [a + b for a, b in zip(totals, counted, strict=True)]
            done += seeds
            progress.update(bar, advance=seeds, found=len(failed))
            if not console.is_terminal and done % LINE == 0:  # it shows no bar
                print(f"{done:,} seeds, {len(failed)} fail", flush=True)
            if len(failed) >= MOST:
                break
    jobs, calls, kills, seconds = totals
    console.print(
        f"{jobs:,.0f} jobs, {calls:,.0f} store calls, {kills:,.0f} kills, "
        f"{seconds / 3600:,.1f} hours of virtual time on {options.store}"
    )
    for seed, problems in sorted(failed.items()):
        console.print(f"[red]seed {seed}[/red]: {problems[0]}", highlight=False)
    if failed:
        first = min(failed)
        console.print(f"make simulate SEED={first} prints the story of the first one")
        return 1
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many seeds to run")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--store", choices=("memory", "sqlite"), default="memory")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seed", type=int, help="run this one, and print its story")
    parser.add_argument("--whole", action="store_true", help="do not make the seed smaller")
    parser.add_argument("--all", action="store_true", help="print boring calls too")
    return parser.parse_args()


def _one(seed: int, store: str, *, shrinks: bool, all: bool) -> int:
    found = run_seed(seed, store=store)
    scenario = draw(seed)
    if found.problems and shrinks and fails(scenario, store):
        scenario = shrink(scenario, lambda candidate: fails(candidate, store))
    print(timeline(scenario, store=store, all=all))
    for problem in found.problems:
        print(f"the whole seed: {problem}")
    return 1 if found.problems else 0


def _chunks(
    options: argparse.Namespace,
) -> Iterator[tuple[int, dict[int, tuple[str, ...]], Counted]]:
    end = options.first + options.seeds
    parts = [(n, min(n + CHUNK, end), options.store) for n in range(options.first, end, CHUNK)]
    if options.processes == 1:
        yield from map(run_part, parts)
        return
    with ProcessPoolExecutor(options.processes, mp_context=get_context("spawn")) as pool:
        try:
            yield from pool.map(run_part, parts)
        finally:
            pool.shutdown(cancel_futures=True)


if __name__ == "__main__":
    sys.exit(main())
