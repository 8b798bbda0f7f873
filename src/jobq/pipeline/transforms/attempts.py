"""`attempts`: every event that takes a job out of `active` is the end of a run and carries all that is to know of it."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from jobq.pipeline.tables import ATTEMPTS

_RUN = ["tenant", "queue", "job", "life", "attempt"]


def ms_between(start: str, end: str) -> Column:
    """Whole milliseconds from one timestamp to another."""
    return F.unix_millis(F.col(end)) - F.unix_millis(F.col(start))


def is_stalled() -> Column:
    """The run lost its lease: who recorded that is not who ran it."""
    return (F.col("kind") == "stalled") | (F.col("reason") == "stalled")


def ends(events: DataFrame) -> DataFrame:
    """The events that end a run."""
    return events.where(F.col("previous") == "active")


def attempts(events: DataFrame, starts: DataFrame | None = None) -> DataFrame:
    """One row per run that ended. `starts`: events among which the beginnings of stalled runs are looked up."""
    rows = ends(events).withColumn("worker", F.when(~F.coalesce(is_stalled(), F.lit(False)), F.col("worker")))
    if starts is not None:
        begun = starts.where(F.col("kind") == "started").select(*_RUN, F.col("worker").alias("begun_by"))
        rows = rows.join(begun, _RUN, "left").withColumn("worker", F.coalesce("worker", "begun_by"))
    rows = rows.select(
        "*",
        F.col("kind").alias("outcome"),
        F.col("at").alias("ended_at"),
        F.greatest(ms_between("due_at", "started_at"), F.lit(0)).alias("wait_ms"),
        ms_between("started_at", "at").alias("run_ms"),
    )
    return rows.select(*ATTEMPTS.columns)


def starts_of_stalled(events: DataFrame, candidates: DataFrame) -> DataFrame:
    """Of the candidates, the beginnings of the runs that `events` say have stalled: a few, found by a broadcast join."""
    lost = ends(events).where(is_stalled()).select(*_RUN)
    return candidates.where(F.col("kind") == "started").join(F.broadcast(lost), _RUN, "left_semi")
