"""`slo`: for each target, how many of the events it applies to were good."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from jobq.pipeline.slo import Target
from jobq.pipeline.tables import SLO
from jobq.pipeline.transforms.attempts import ms_between

_KEYS = ["tenant", "queue", "day", "hour"]


def slo(events: DataFrame, targets: Sequence[Target]) -> DataFrame:
    """Attainment per target, queue and hour: one pass over the events, whatever the number of targets."""
    counts = [column for n, target in enumerate(targets) for column in _counts(n, target)]
    counted = (
        events.where(F.col("kind").isin("started", "completed", "failed"))
        .groupBy(*_KEYS)
        .agg(F.count(F.lit(1)).alias("n"), *counts)
    )
    each = F.array(*(_row(n, target) for n, target in enumerate(targets)))
    rows = counted.select(*_KEYS, F.explode(each).alias("t")).where("t.total > 0").select(*_KEYS, "t.*")
    rows = rows.withColumn("attainment", F.col("good") / F.col("total"))
    return rows.withColumn("met", F.col("attainment") >= F.col("objective")).select(*SLO.columns)


def _row(n: int, target: Target) -> Column:
    return F.struct(
        F.lit(target.name).alias("target"),
        F.col(f"good{n}").alias("good"),
        F.col(f"total{n}").alias("total"),
        F.lit(float(target.objective)).alias("objective"),
    )


def _counts(n: int, target: Target) -> tuple[Column, Column]:
    kind = F.col("kind")
    if target.succeed:
        applies, good = kind.isin("completed", "failed"), kind == "completed"
    elif target.start_within is not None:
        applies, good = kind == "started", ms_between("due_at", "started_at") <= target.within_ms
    else:
        applies, good = kind == "completed", ms_between("started_at", "at") <= target.within_ms
    for name, wanted in (("tenant", target.tenant), ("queue", target.queue)):
        if wanted != "*":
            applies = applies & (F.col(name) == wanted)
    return F.count_if(applies & good).alias(f"good{n}"), F.count_if(applies).alias(f"total{n}")
