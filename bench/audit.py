"""What does an audit cost: of a whole lake, and of what is new in it?

    python -m bench.audit --events 1000000 --events 10000000 --new 100000

It fills a lake with synthetic events and audits it, then adds new events several times and audits
after each. The cost of an incremental audit should follow the new events, not the lake, so the last
lines compare lakes of several sizes. All audits run in one Spark session. Exits with 1 if an audit
of what is new takes longer than BOUND_S, which is meant for 100,000 new events.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

import click
from pyspark.sql import SparkSession

from bench.pipeline import Line, Meter, events_of, show
from jobq.pipeline.audit.audit import audit
from jobq.pipeline.jobs.run import PipelineRun
from jobq.pipeline.lake import Lake
from jobq.pipeline.session import open_session
from jobq.pipeline.sources import open_source
from jobq.pipeline.synthetic import EVENTS_PER_JOB, Plan, write

_DAY_MS = 86_400_000
BOUND_S = 15.0
"""Seconds that an audit of 100,000 new events may take, whatever the size of the lake."""
NEW = "audit of what is new"


def take_in(lake: Lake, folder: Path) -> None:
    """Read a folder of events into the lake."""
    run = PipelineRun(lake, open_source(str(folder)), ())
    run.start(lake.spark, once=True)
    run.wait()


def bench(spark: SparkSession, folder: Path, events: int, new: int, rounds: int) -> list[Line]:
    """Audit a lake of `events`, then `rounds` times what was added to it."""
    meter, lines = Meter(spark), []
    made, count = events_of(folder, events)
    root = folder / f"lake-{events}"
    shutil.rmtree(root, ignore_errors=True)
    lake = Lake(spark, str(root))
    take_in(lake, made)
    lines.append(meter.measure("audit of everything", count, lambda: _audited(lake)))
    lines.append(meter.measure("audit of nothing new", 1, lambda: _audited(lake)))
    for n in range(rounds):
        # The next hours of the next day, as a lake grows.
        plan = Plan(
            jobs=int(new / EVENTS_PER_JOB),
            log=f"n{n}",
            start_ms=Plan(jobs=1).start_ms + _DAY_MS + n * 3_600_000,
            hours=1,
        )
        added = folder / f"new-{n}"
        shutil.rmtree(added, ignore_errors=True)
        count = write(plan, added, files=2)
        take_in(lake, added)
        lines.append(meter.measure(NEW, count, lambda: _audited(lake)))
    lines.append(meter.measure("audit of everything", events, lambda: _audited(lake, full=True)))
    shutil.rmtree(root)
    return lines


def _audited(lake: Lake, *, full: bool = False) -> None:
    found = audit(lake, full=full)
    assert found.verdict == "proved", [queue.problems for queue in found.queues]


def main() -> None:
    """Parse the options and run the benchmark."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument(
        "--events",
        type=int,
        action="append",
        default=[],
        help="events in the lake first (1,000,000); repeat for several lakes",
    )
    options.add_argument("--new", type=int, default=100_000, help="events that are added each time")
    options.add_argument("--rounds", type=int, default=3, help="how often events are added")
    options.add_argument("--memory", default="3g", help="heap of the Spark driver (%(default)s)")
    options.add_argument("--folder", type=Path, help="working folder, which keeps the events")
    given = options.parse_args()
    folder = given.folder or Path(tempfile.mkdtemp(prefix="jobq-bench-"))
    folder.mkdir(parents=True, exist_ok=True)
    spark = open_session(
        "bench",
        master="local[*]",
        conf={"spark.driver.memory": given.memory, "spark.local.dir": str(folder / "spark")},
    )
    medians = {}
    try:
        for events in given.events or [1_000_000]:
            lines = bench(spark, folder, events, given.new, given.rounds)
            show(lines)
            medians[events] = _median(lines)
    finally:
        spark.stop()
        if given.folder is None:
            shutil.rmtree(folder, ignore_errors=True)
    for events, (s, cpu) in medians.items():
        click.echo(f"{NEW}, medians: {s:.1f} s, {cpu:.1f} cpu s in a lake of {events:,}")
    if any(s > BOUND_S for s, _ in medians.values()):
        sys.exit(f"an audit of what is new took longer than {BOUND_S:g} s")


def _median(lines: list[Line]) -> tuple[float, float]:
    """Seconds and CPU seconds of an audit of what is new."""
    new = [line for line in lines if line["what"] == NEW]
    s, cpu = (statistics.median(line[name] for line in new) for name in ("s", "cpu_s"))
    return s, cpu


if __name__ == "__main__":
    main()
