"""Compare `df.write.format("jobq")` with `enqueue_many`, for the same jobs on Valkey."""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import Any

import click
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from bench.places import place
from jobq import Queue
from jobq.pipeline.jobs.load import load as write

_URL = "valkey://127.0.0.1:{port}"
_TASK = "send"


def load(spark: SparkSession, jobs: int, rounds: int) -> list[dict[str, Any]]:
    """Measure both alternately, after a warm-up of Spark. Prints and returns the medians."""
    _by_spark(spark, _rows(spark, 20_000), 20_000)
    times: dict[str, list[float]] = {"enqueue_many": [], "df.write": []}
    for _ in range(rounds):
        times["enqueue_many"].append(_by_hand(jobs))
        times["df.write"].append(_by_spark(spark, _rows(spark, jobs), jobs))
    middle = {name: statistics.median(took) for name, took in times.items()}
    for name, s in middle.items():
        share = f"  {middle['enqueue_many'] / s:.0%} of enqueue_many" if name == "df.write" else ""
        click.echo(f"{name:26} {jobs:>11,} jobs {s:11.1f} s {int(jobs / s):>9,}/s{share}")
    return [{"what": name, "jobs": jobs, "s": s} for name, s in middle.items()]


def _rows(spark: SparkSession, jobs: int) -> DataFrame:
    """Orders with a number, an address and an amount. The number is the job's id."""
    number = F.col("id")
    return spark.range(jobs).select(
        F.concat(F.lit("order-"), number).alias("_id"),
        number.alias("order"),
        F.concat(F.lit("customer-"), number % 5_000, F.lit("@example.org")).alias("to"),
        (number % 10_000 / 100.0).alias("amount"),
    )


def _by_hand(jobs: int) -> float:
    async def enqueue(url: str) -> float:
        async with Queue("mail", url) as queue:
            send = queue.task_by_name(_TASK)
            began = time.monotonic()
            await send.enqueue_many(
                {
                    "order": n,
                    "to": f"customer-{n % 5_000}@example.org",
                    "amount": n % 10_000 / 100.0,
                }
                for n in range(jobs)
            )
            return time.monotonic() - began

    with place("valkey", _URL) as where:
        return asyncio.run(enqueue(where.url))


def _by_spark(spark: SparkSession, rows: DataFrame, jobs: int) -> float:
    with place("valkey", _URL) as where:
        began = time.monotonic()
        found = write(spark, rows, {"url": where.url, "queue": "mail", "task": _TASK})
        took = time.monotonic() - began
    assert found["accepted"] == jobs, found
    return took
