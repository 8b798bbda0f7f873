"""The table `slo`: for each target, how many of the runs or jobs it applies to met it."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from jobq.pipeline.slo import Target
from jobq.pipeline.tables import SLO
from jobq.pipeline.transforms.queues import good

_KEYS = ["tenant", "queue", "day", "hour"]


def slo(steps: DataFrame, targets: Sequence[Target]) -> DataFrame:
    """Attainment per target, queue and hour. `steps` must be counted with the same targets."""
    hourly = steps.where(F.col("kind").isin("started", "completed", "failed")).select(
        "*",
        F.date_from_unix_date(F.expr("int(m div 1440)")).alias("day"),
        F.expr("int(m div 60 % 24)").alias("hour"),
    )
    counts = [column for n, target in enumerate(targets) for column in _counts(n, target)]
    counted = hourly.groupBy(*_KEYS).agg(F.sum("n").alias("events"), *counts)
    each = F.array(*(_row(n, target) for n, target in enumerate(targets)))
    rows = (
        counted.select(*_KEYS, F.explode(each).alias("t"))
        .where("t.total > 0")
        .select(*_KEYS, "t.*")
    )
    rows = rows.withColumn("attainment", F.col("good") / F.col("total"))
    return rows.withColumn("met", F.col("attainment") >= F.col("objective")).select(*SLO.columns)


def _row(n: int, target: Target) -> Column:
    return F.struct(
        F.lit(target.name).alias("target"),
        F.col(f"within{n}").alias("good"),
        F.col(f"total{n}").alias("total"),
        F.lit(float(target.objective)).alias("objective"),
    )


def _counts(n: int, target: Target) -> tuple[Column, Column]:
    kind, count = F.col("kind"), F.col("n")
    if target.succeed:
        applies, within = (
            kind.isin("completed", "failed"),
            F.when(kind == "completed", count).otherwise(0),
        )
    else:
        applies, within = (
            kind == ("completed" if target.start_within is None else "started"),
            F.col(good(n)),
        )
    for name, wanted in (("tenant", target.tenant), ("queue", target.queue)):
        if wanted != "*":
            applies = applies & (F.col(name) == wanted)
    return (
        F.sum(F.when(applies, within).otherwise(0)).alias(f"within{n}"),
        F.sum(F.when(applies, count).otherwise(0)).alias(f"total{n}"),
    )
