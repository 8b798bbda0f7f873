"""The table `worker_minute`: runs are cut at full minutes and added up per worker and minute."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from jobq.pipeline.tables import WORKER_MINUTE

LOOK_BACK_HOURS = 24
"""A longer run counts only in its last 24 hours, so that an hour depends on few other hours."""

_MINUTE = 60_000  # in milliseconds


def worker_minute(attempts: DataFrame) -> DataFrame:
    """Utilisation per worker and minute. `attempts` must have all runs that touch the minutes."""
    rows = worker_slices(attempts, _MINUTE).select(
        "*",
        F.timestamp_millis("at_ms").alias("minute"),
        (F.col("busy_ms") / _MINUTE).alias("concurrency"),
        (F.col("covered_ms") / _MINUTE).alias("utilisation"),
    )
    rows = rows.select("*", F.to_date("minute").alias("day"), F.hour("minute").alias("hour"))
    return rows.select(*WORKER_MINUTE.columns)


def worker_slices(attempts: DataFrame, slice_ms: int) -> DataFrame:
    """Cut runs into slices of this many milliseconds, and add them up per worker and slice.

    Columns: worker, at_ms (the start of the slice), runs, busy_ms, covered_ms."""
    start, end = F.unix_millis("started_at"), F.unix_millis("ended_at")
    earliest = end - LOOK_BACK_HOURS * 3_600_000
    runs = attempts.where(F.col("worker").isNotNull() & F.col("started_at").isNotNull())
    runs = runs.select(
        "worker", F.greatest(start, earliest).alias("a"), F.greatest(end, start).alias("b")
    )
    first, last = F.expr(f"a div {slice_ms}"), F.expr(f"b div {slice_ms}")
    pieces = runs.select("worker", "a", "b", F.explode(F.sequence(first, last)).alias("m"))
    pieces = pieces.select(
        "worker",
        "m",
        F.greatest("a", F.col("m") * slice_ms).alias("a"),
        F.least("b", (F.col("m") + 1) * slice_ms).alias("b"),
    )
    # A hash first: sorting by a number avoids most comparisons of strings.
    pieces = pieces.withColumn("h", F.xxhash64("worker", "m")).repartition("h")
    earlier = (
        Window.partitionBy("h", "worker", "m")
        .orderBy("a", "b")
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    reach = F.coalesce(F.max("b").over(earlier), F.col("a"))
    cut = pieces.select(
        "h",
        "worker",
        "m",
        "a",
        "b",
        F.greatest(F.col("b") - F.greatest("a", reach), F.lit(0)).alias("new"),
    )
    grouped = cut.groupBy("h", "worker", "m").agg(
        F.count(F.lit(1)).alias("runs"),
        F.sum(F.col("b") - F.col("a")).alias("busy_ms"),
        F.sum("new").alias("covered_ms"),
    )
    return grouped.select(
        "worker", (F.col("m") * slice_ms).alias("at_ms"), "runs", "busy_ms", "covered_ms"
    )
