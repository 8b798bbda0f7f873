"""The table `task_hour`: what the runs of each task on each worker came to, hour by hour."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from jobq.pipeline.tables import TASK_HOUR

_KEYS = ["tenant", "queue", "name", "worker", "day", "hour"]
_LOST = ("retried", "failed", "stalled")


def ending() -> Column:
    """How a run ended, in one word per run: the names of the counts of `task_hour`."""
    outcome = F.col("outcome")
    return (
        F.when(F.col("reason").eqNullSafe("stalled"), "stalled")
        .when(outcome.isin("snoozed", "released", "limited", "blocked"), "returned")
        .otherwise(outcome)
    )


def task_hour(attempts: DataFrame) -> DataFrame:
    """Count the runs of whole hours, and add up their time."""
    ended = attempts.select(*_KEYS, ending().alias("ending"), "run_ms", "wait_ms")
    counts = [
        F.count_if(F.col("ending") == name).alias(name)
        for name in ("completed", "retried", "failed", "stalled", "cancelled", "returned")
    ]
    lost = F.when(F.col("ending").isin(*_LOST), F.col("run_ms"))
    sums = {"run_ms": F.col("run_ms"), "lost_ms": lost, "wait_ms": F.col("wait_ms")}
    grouped = ended.groupBy(*_KEYS).agg(
        F.count(F.lit(1)).alias("runs"),
        *counts,
        *(F.coalesce(F.sum(ms), F.lit(0)).alias(name) for name, ms in sums.items()),
    )
    return grouped.select(*TASK_HOUR.columns)
