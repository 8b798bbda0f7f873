"""What does the pipeline cost, compared with Spark jobs that only copy the same events?

    python -m bench.pipeline --events 1000000 --events 10000000   from files, in two sizes
    python -m bench.pipeline --events 1000000 --kafka             from a Kafka started here
    python -m bench.pipeline --events 3000000 --stages            with the times of Spark's stages
    python -m bench.pipeline --load 1000000                       format("jobq") compared with
                                                                  enqueue_many, on Valkey

It measures `run --once`, the audit, and two copies to Parquet: of the lines as they are, and
parsed, which is the least that a table with columns costs. All run in one session, so ratios can be
compared on a busy machine. CPU seconds and the peak of resident memory are those of Spark.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from jobq.pipeline.audit.audit import audit
from jobq.pipeline.jobs.run import PipelineRun
from jobq.pipeline.lake import Lake
from jobq.pipeline.session import open_session
from jobq.pipeline.slo import DEFAULTS
from jobq.pipeline.sources import open_source
from jobq.pipeline.synthetic import EVENTS_PER_JOB, Plan, write
from jobq.pipeline.transforms.parse import WIRE, from_json_lines

WARM_UP = 50_000  # events of a first pass, which is not reported

Line = dict[str, Any]


class Meter:
    """Measures time, CPU time and peak memory of the Spark process."""

    def __init__(self, spark: SparkSession) -> None:
        gateway: Any = spark.sparkContext._gateway
        self.process = Path(f"/proc/{gateway.proc.pid}")
        self.peak = 0
        self._stop = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while not self._stop.wait(0.2):
            self.peak = max(
                self.peak,
                int((self.process / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"),
            )

    def _cpu(self) -> float:
        fields = (self.process / "stat").read_text().rsplit(") ", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def measure(self, name: str, events: int, work: Callable[[], object]) -> Line:
        """Call `work` and return its costs."""
        self.peak = 0
        began, cpu = time.monotonic(), self._cpu()
        work()
        took, used = time.monotonic() - began, self._cpu() - cpu
        return {
            "what": name,
            "events": events,
            "s": took,
            "cpu_s": used,
            "peak_mb": self.peak >> 20,
        }


def bench(
    spark: SparkSession, meter: Meter, source: str, folder: Path, events: int, rounds: int
) -> list[Line]:
    """Take all measurements of one source. Returns the medians of the rounds."""
    opened = open_source(source)
    lake = folder / "lake"

    def pipeline() -> None:
        into = Lake(spark, str(lake))
        run = PipelineRun(into, opened, DEFAULTS)
        run.start(spark, once=True)
        run.wait()
        assert into.state.totals.events == events, into.state.totals

    works = {
        **_copies(spark, source, folder),
        "run --once": pipeline,
        "audit": lambda: _audited(Lake(spark, str(lake))),
    }
    measured: dict[str, list[Line]] = {name: [] for name in works}
    for _ in range(rounds):
        shutil.rmtree(lake, ignore_errors=True)
        for name, work in works.items():
            measured[name].append(meter.measure(name, events, work))
    return [_median(lines) for lines in measured.values()]


def _median(lines: list[Line]) -> Line:
    middle = {name: statistics.median(line[name] for line in lines) for name in ("s", "cpu_s")}
    return {**lines[0], **middle, "peak_mb": max(line["peak_mb"] for line in lines)}


def _audited(lake: Lake) -> None:
    assert audit(lake).verdict == "proved"


def _copies(spark: SparkSession, source: str, folder: Path) -> dict[str, Callable[[], None]]:
    if source.startswith("kafka://"):
        servers, topic = source.removeprefix("kafka://").split("/")
        kafka = {"kafka.bootstrap.servers": servers, "subscribe": topic}
        records = (
            spark.read.format("kafka")
            .options(**kafka)
            .load()
            .withColumn("value", F.col("value").cast("string"))
        )
        raw, parsed = (
            records.select("key", "value", "partition", "offset", "timestamp"),
            from_json_lines(records),
        )
    else:
        raw, parsed = spark.read.text(source), spark.read.schema(WIRE).json(source)
    return {
        "copy (lines as they are)": lambda: raw.write.mode("overwrite").parquet(
            str(folder / "raw")
        ),
        "copy (parsed)": lambda: parsed.write.mode("overwrite").parquet(str(folder / "parsed")),
    }


def to_kafka(address: str, topic: str, folder: Path) -> None:
    """Send the events of a folder to Kafka, as the relay does."""
    from confluent_kafka import Producer

    settings = {
        "enable.idempotence": True,
        "compression.type": "zstd",
        "linger.ms": 20,
        "queue.buffering.max.messages": 500_000,
    }
    producer = Producer({"bootstrap.servers": address, **settings})
    for file in sorted(folder.glob("*.jsonl")):
        for line in file.open("rb"):
            event = json.loads(line)
            while True:
                try:
                    producer.produce(
                        topic,
                        value=line.rstrip(),
                        key=f"{event['tenant']}/{event['queue']}/{event['job']}",
                    )
                    break
                except BufferError:
                    producer.poll(0.05)
            producer.poll(0)
    producer.flush()


def show(lines: list[Line]) -> None:
    """Print the results, with ratios to the copies."""
    copies = [line for line in lines if line["what"].startswith("copy")]
    for line in lines:
        rate = int(line["events"] / line["s"])
        figures = (
            f"{line['s']:8.1f} s {line['cpu_s']:8.1f} cpu s {rate:>9,}/s {line['peak_mb']:>6,} MB"
        )
        click.echo(f"{line['what']:26} {line['events']:>11,} events {figures}")
        for copy in copies if line["what"] == "run --once" else ():
            ratio, cpu = line["s"] / copy["s"], line["cpu_s"] / copy["cpu_s"]
            click.echo(f"{'':26} {ratio:8.2f} × the time and {cpu:.2f} × the CPU of {copy['what']}")
    sys.stdout.flush()


def show_growth(lines: list[Line]) -> None:
    """Print the time per event at each size, relative to the smallest size."""
    for what in ("copy (parsed)", "run --once", "audit"):
        sizes = sorted(
            (line for line in lines if line["what"] == what), key=lambda line: line["events"]
        )
        each = [
            (line["events"], 1e6 * line["s"] / line["events"], 1e6 * line["cpu_s"] / line["events"])
            for line in sizes
        ]
        steps = (
            f"{events:,}: {s:.1f} µs, {cpu:.1f} µs cpu (× {s / each[0][1]:.2f})"
            for events, s, cpu in each
        )
        click.echo(f"{what:14} per event at " + "   ".join(steps))


def through_kafka(
    spark: SparkSession, meter: Meter, made: str, work: Path, count: int, rounds: int
) -> list[Line]:
    """Take all measurements from a Kafka topic."""
    from tests.kafka import Kafka

    kafka = Kafka(work / "kafka").start()
    try:
        to_kafka(kafka.address, "events", Path(made))
        return bench(spark, meter, f"kafka://{kafka.address}/events", work, count, rounds)
    finally:
        kafka.stop()


def events_of(folder: Path, size: int) -> tuple[Path, int]:
    """A folder with about `size` events, and their exact number. Creates it if necessary."""
    made = folder / f"events-{size}"
    if not made.exists():
        unfinished = folder / f"making-{size}"
        shutil.rmtree(unfinished, ignore_errors=True)
        write(
            Plan(jobs=int(size / EVENTS_PER_JOB), log=f"s{size}"),
            unfinished,
            files=max(4, size // 1_000_000),
        )
        unfinished.rename(made)
    return made, sum(1 for file in made.glob("*.jsonl") for _ in file.open("rb"))


def main() -> None:
    """Parse the options and run the benchmarks."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument(
        "--events",
        type=int,
        action="append",
        default=[],
        help="number of events; repeat for several",
    )
    options.add_argument(
        "--load",
        type=int,
        action="append",
        default=[],
        help="number of jobs to load into Valkey; repeat for several",
    )
    options.add_argument(
        "--rounds",
        type=int,
        default=1,
        help="rounds of every measurement (%(default)s); prints medians",
    )
    options.add_argument(
        "--kafka", action="store_true", help="read from a Kafka that is started here"
    )
    options.add_argument(
        "--stages", action="store_true", help="also print the times of Spark's stages"
    )
    options.add_argument("--master", default="local[*]", help="Spark master (%(default)s)")
    options.add_argument("--memory", default="3g", help="heap of the Spark driver (%(default)s)")
    options.add_argument("--folder", type=Path, help="working folder, which keeps the events")
    options.add_argument("--out", type=Path, help="also write the results to this file, as JSON")
    given = options.parse_args()
    folder = given.folder or Path(tempfile.mkdtemp(prefix="jobq-bench-"))
    sizes = given.events or ([] if given.load else [1_000_000])
    try:
        results = _run(given, folder, sizes)
    finally:
        if given.folder is None:
            shutil.rmtree(folder, ignore_errors=True)
    if given.out:
        given.out.write_text(json.dumps(results, indent=1))


def _run(given: argparse.Namespace, folder: Path, sizes: list[int]) -> list[Line]:
    log = folder / "stages"
    conf = {"spark.driver.memory": given.memory, "spark.local.dir": str(folder / "spark")}
    if given.kafka:
        from tests.kafka import spark_jars

        conf["spark.jars"] = spark_jars("spark-kafka")
    if given.stages:
        shutil.rmtree(log, ignore_errors=True)
        log.mkdir(parents=True)
        conf |= {
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": log.as_uri(),
            "spark.eventLog.compress": "false",
        }
    spark = open_session("bench", master=given.master, conf=conf)
    meter, results, warm_until = Meter(spark), [], 0.0
    try:
        for size in (WARM_UP, *sizes) if sizes else ():
            made, count = events_of(folder, size)
            work = folder / f"work-{size}"
            shutil.rmtree(work, ignore_errors=True)
            rounds = given.rounds if size != WARM_UP else 1
            lines = (through_kafka if given.kafka else bench)(
                spark, meter, str(made), work, count, rounds
            )
            shutil.rmtree(work, ignore_errors=True)
            if size == WARM_UP:
                warm_until = time.time()
                continue
            show(lines)
            results += lines
        if len(sizes) > 1:
            show_growth(results)
        if given.load:
            from bench.load import load

            results += [line for jobs in given.load for line in load(spark, jobs, given.rounds)]
    finally:
        spark.stop()
    if given.stages:
        from bench.stages import show_stages

        show_stages(log, since=warm_until)
    return results


if __name__ == "__main__":
    main()
