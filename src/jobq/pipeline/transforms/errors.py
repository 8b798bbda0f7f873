"""`errors`: failures by cause, with the latest one as the example."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from jobq.pipeline.tables import ERRORS


def errors(events: DataFrame) -> DataFrame:
    """Every failed run and every job that failed without one (expired, a failed child), grouped by cause and hour."""
    failures = events.where(F.col("kind").isin("retried", "failed"))
    grouped = failures.groupBy(
        "tenant", "queue", "name", "reason", "fingerprint", "day", "hour"
    ).agg(
        F.count(F.lit(1)).alias("count"),
        F.count_if(F.col("kind") == "failed").alias("final"),
        F.min("at").alias("first_at"),
        F.max("at").alias("last_at"),
        F.max_by(F.struct("error", "job"), "at").alias("last"),
    )
    return grouped.select(
        "*", F.col("last.error").alias("example"), F.col("last.job").alias("example_job")
    ).select(*ERRORS.columns)
