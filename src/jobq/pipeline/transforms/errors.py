"""The table `errors`: failures by cause and hour, with the latest one as the example."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from jobq.pipeline.tables import ERRORS


def errors(events: DataFrame) -> DataFrame:
    """Group failed runs, and jobs that failed without a run (expired, failed child), by cause."""
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
