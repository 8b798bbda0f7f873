"""The fault ledger: `python -m tests.faults.ledger --store sqlite --jobs 10000 --kills 20`.

`make faults STORE=… JOBS=… KILLS=…` runs it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.faults.ledger.plan import KINDS
from tests.faults.ledger.report import table
from tests.faults.ledger.run import EXECUTORS, PLACES, Settings, Stuck, execute

QUIET_S = 10.0
"""Seconds between two lines of progress where there is no terminal."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults.ledger",
        description="Run jobs on a store while workers, producers, servers, networks, disks and "
        "clocks fail, and check afterwards that no acknowledged job is lost and that every "
        "repeated run is explained. Exits with 1 if not.",
        epilog="example: python -m tests.faults.ledger --store valkey --durability everysec "
        "--jobs 10000 --kills 20. The same seed makes the same plan of faults; what the faults hit "
        "depends on the machine.",
    )
    add = parser.add_argument
    add("--store", choices=PLACES, required=True, help="where jobs are stored")
    add("--jobs", type=int, default=10_000, help="how many jobs to enqueue (10000)")
    add("--kills", type=int, default=20, help="how often to kill -9 a process (20)")
    add("--others", type=int, help="how many other faults (half as many as kills)")
    classes = "; ".join(f"{name}: {', '.join(kind.durabilities)}" for name, kind in PLACES.items())
    add("--durability", help=f"the first of {classes}")
    add("--executor", choices=EXECUTORS, default="inline", help="where handlers run (inline)")
    add("--only", action="append", choices=KINDS, default=[], help="a kind of fault; repeatable")
    add("--seed", type=int, default=1, help="chooses the faults and their times (1)")
    add("--workers", type=int, default=3, help="worker processes (3)")
    add("--producers", type=int, default=2, help="producer processes (2)")
    add("--concurrency", type=int, help="jobs that a worker runs at once (20, or 100 from 100,000 "
        "jobs on)")  # fmt: skip
    add("--lease", type=float, default=2.0, metavar="SECONDS", help="lease of a job (2)")
    add("--work", type=float, metavar="MS", help="average time of a handler (such that the load "
        "lasts as long as the faults)")  # fmt: skip
    add("--keep", type=Path, metavar="FOLDER", help="keep all facts and logs there")
    return parser


class Screen:
    """Progress: a line that is written over in a terminal, else a line now and again."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._began = self._next = time.monotonic()

    def __call__(self, text: str) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + (0.2 if self._live else QUIET_S)
        line = f"{now - self._began:5.0f} s  {text}"
        sys.stderr.write(f"\r\033[K{line}" if self._live else f"{line}\n")
        sys.stderr.flush()

    def clear(self) -> None:
        if self._live:
            sys.stderr.write("\r\033[K")


def main() -> int:
    """Run and print the table. Returns the exit code."""
    given = _parser().parse_args()
    kind = PLACES[given.store]
    if given.durability not in (None, *kind.durabilities):
        _parser().error(f"--durability of {given.store} is one of {', '.join(kind.durabilities)}")
    settings = Settings(
        store=given.store, jobs=given.jobs, kills=given.kills, others=given.others,
        durability=given.durability, executor=given.executor, seed=given.seed,
        only=tuple(given.only), workers=given.workers, producers=given.producers,
        concurrency=given.concurrency, lease_s=given.lease, work_ms=given.work,
    )  # fmt: skip
    folder = given.keep or Path(tempfile.mkdtemp(prefix="jobq-ledger-"))
    folder.mkdir(parents=True, exist_ok=True)
    os.chmod(folder, 0o755)  # PostgreSQL runs as another user
    screen = Screen()
    try:
        result = execute(settings, folder, screen)
    except Stuck as stuck:
        screen.clear()
        sys.stdout.write(f"NOT GOOD: {stuck}\n")
        return 1
    screen.clear()
    sys.stdout.write(table(result) + "\n")
    if not result.good:
        sys.stdout.write(f"all facts and logs are in {folder}\n")
        return 1
    if given.keep is None:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
