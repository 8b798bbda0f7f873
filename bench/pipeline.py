"""What the pipeline costs: `run --once` against bare Spark jobs that only copy the same source to Parquet, and the audit.

    python bench/pipeline.py --events 1000000 --events 10000000      from files
    python bench/pipeline.py --events 1000000 --kafka                the same through a real Kafka

Every line of a size is measured in one session on the same events, after a warm-up, so that ratios can be compared whatever
else the machine does; CPU seconds are those of Spark's process, and the peak is its resident memory.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
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

from jobq.pipeline.audit import audit
from jobq.pipeline.jobs.run import Run
from jobq.pipeline.lake import Lake
from jobq.pipeline.session import open_session
from jobq.pipeline.slo import DEFAULTS
from jobq.pipeline.sources import open_source
from jobq.pipeline.synthetic import EVENTS_PER_JOB, Plan, write
from jobq.pipeline.transforms.parse import WIRE, from_json_lines


class Meter:
    """Time, CPU time and peak memory of the Spark process."""

    def __init__(self, spark: SparkSession) -> None:
        gateway: Any = spark.sparkContext._gateway
        self.process = Path(f"/proc/{gateway.proc.pid}")
        self.peak = 0
        self._stop = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while not self._stop.wait(0.2):
            self.peak = max(self.peak, int((self.process / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"))

    def _cpu(self) -> float:
        fields = (self.process / "stat").read_text().rsplit(") ", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def measure(self, name: str, events: int, work: Callable[[], object]) -> dict[str, Any]:
        """Do it and say what it took."""
        self.peak = 0
        began, cpu = time.monotonic(), self._cpu()
        work()
        took, used = time.monotonic() - began, self._cpu() - cpu
        figures = {"s": round(took, 2), "cpu_s": round(used, 2), "events/s": int(events / took), "peak_mb": self.peak >> 20}
        return {"what": name, "events": events, **figures}


def bench(spark: SparkSession, meter: Meter, source: str, folder: Path, events: int) -> list[dict[str, Any]]:
    """All lines of one source."""
    opened = open_source(source)

    def pipeline() -> None:
        lake = Lake(spark, str(folder / "lake"))
        run = Run(lake, opened, DEFAULTS)
        run.start(spark, once=True)
        run.wait()
        assert lake.state.totals.events == events, lake.state.totals

    lines = [meter.measure(name, events, work) for name, work in _copies(spark, source, folder).items()]
    lines.append(meter.measure("run --once", events, pipeline))
    lines.append(meter.measure("audit", events, lambda: _audited(Lake(spark, str(folder / "lake")))))
    return lines


def _audited(lake: Lake) -> None:
    assert audit(lake).verdict == "proved"


def _copies(spark: SparkSession, source: str, folder: Path) -> dict[str, Callable[[], None]]:
    if source.startswith("kafka://"):
        servers, topic = source.removeprefix("kafka://").split("/")
        kafka = {"kafka.bootstrap.servers": servers, "subscribe": topic}
        records = spark.read.format("kafka").options(**kafka).load().withColumn("value", F.col("value").cast("string"))
        raw, parsed = records.select("key", "value", "partition", "offset", "timestamp"), from_json_lines(records)
    else:
        raw, parsed = spark.read.text(source), spark.read.schema(WIRE).json(source)
    return {
        "copy (lines as they are)": lambda: raw.write.mode("overwrite").parquet(str(folder / "raw")),
        "copy (parsed)": lambda: parsed.write.mode("overwrite").parquet(str(folder / "parsed")),
    }


def to_kafka(address: str, topic: str, folder: Path) -> None:
    """The events of the folder, as the relay would send them."""
    from confluent_kafka import Producer

    settings = {"enable.idempotence": True, "compression.type": "zstd", "linger.ms": 20, "queue.buffering.max.messages": 500_000}
    producer = Producer({"bootstrap.servers": address, **settings})
    for file in sorted(folder.glob("*.jsonl")):
        for line in file.open("rb"):
            event = json.loads(line)
            while True:
                try:
                    producer.produce(topic, value=line.rstrip(), key=f"{event['tenant']}/{event['queue']}/{event['job']}")
                    break
                except BufferError:
                    producer.poll(0.05)
            producer.poll(0)
    producer.flush()


def show(lines: list[dict[str, Any]]) -> None:
    """As a table, with ratios to the copies."""
    copies = {line["what"]: line for line in lines if line["what"].startswith("copy")}
    for line in lines:
        compared = copies.items() if line["what"] == "run --once" else ()
        ratios = "  ".join(f"{line['s'] / copy['s']:5.2f}× {name}" for name, copy in compared)
        figures = f"{line['s']:8.1f} s {line['cpu_s']:8.1f} cpu s {line['events/s']:>9,}/s {line['peak_mb']:>6,} MB"
        click.echo(f"{line['what']:26} {line['events']:>11,} events {figures}  {ratios}")


def main() -> None:
    """See the module."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--events", type=int, action="append", help="size; may be repeated (default 1,000,000)")
    options.add_argument("--kafka", action="store_true", help="through a Kafka started here")
    options.add_argument("--master", default="local[*]")
    options.add_argument("--memory", default="3g", help="heap of the Spark driver")
    options.add_argument("--folder", type=Path, help="work here, and keep what is made")
    options.add_argument("--out", type=Path, help="also as JSON")
    given = options.parse_args()
    folder = given.folder or Path(tempfile.mkdtemp(prefix="jobq-bench-"))
    conf = {"spark.driver.memory": given.memory, "spark.local.dir": str(folder / "spark")}
    if given.kafka:
        from tests.kafka import spark_jars

        conf["spark.jars"] = spark_jars("spark-kafka")
    spark = open_session("bench", master=given.master, conf=conf)
    meter, results = Meter(spark), []
    try:
        for size in (50_000, *(given.events or [1_000_000])):  # the first warms the session up
            made = folder / f"events-{size}"
            if not made.exists():
                write(Plan(jobs=int(size / EVENTS_PER_JOB), log=f"s{size}"), made, files=max(4, size // 1_000_000))
            count = sum(1 for file in made.glob("*.jsonl") for _ in file.open("rb"))
            work = folder / f"work-{size}"
            lines = (_through_kafka if given.kafka else bench)(spark, meter, str(made), work, count)
            shutil.rmtree(work, ignore_errors=True)
            if size != 50_000:
                show(lines)
                sys.stdout.flush()
                results += lines
    finally:
        spark.stop()
        if given.folder is None:
            shutil.rmtree(folder, ignore_errors=True)
    if given.out:
        given.out.write_text(json.dumps(results, indent=1))


def _through_kafka(spark: SparkSession, meter: Meter, made: str, work: Path, count: int) -> list[dict[str, Any]]:
    from tests.kafka import Kafka

    kafka = Kafka(work / "kafka").start()
    try:
        to_kafka(kafka.address, "events", Path(made))
        return bench(spark, meter, f"kafka://{kafka.address}/events", work, count)
    finally:
        kafka.stop()


if __name__ == "__main__":
    main()
