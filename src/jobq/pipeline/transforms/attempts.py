"""`attempts`: every event that takes a job out of `active` is the end of a run, and mostly says all that is to know of it."""

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
    return (F.col("kind") == "stalled") | (F.col("reason").eqNullSafe("stalled"))


def is_told_by_its_start() -> Column:
    """The end does not say all: it names the next time the job is due, or another worker than the one that ran it."""
    return F.col("kind").isin("retried", "snoozed", "blocked") | is_stalled()


def ends(events: DataFrame) -> DataFrame:
    """The events that end a run."""
    return events.where(F.col("previous") == "active")


def starts_wanted(events: DataFrame) -> DataFrame:
    """The runs that ended among `events` and whose beginning has to be looked up, with its time: a few in a hundred."""
    return ends(events).where(is_told_by_its_start() & F.col("started_at").isNotNull()).select(*_RUN, "started_at")


def starts_found(wanted: DataFrame, candidates: DataFrame) -> DataFrame:
    """Of the candidates, the beginnings of the wanted runs."""
    begun = candidates.where(F.col("kind") == "started").select(
        *_RUN, F.col("worker").alias("begun_by"), F.col("due_at").alias("begun_due")
    )
    return begun.join(wanted.select(*_RUN), _RUN, "left_semi")


def attempts(events: DataFrame, starts: DataFrame | None = None) -> DataFrame:
    """One row per run that ended. `starts`: what `starts_found` answered, for the runs whose end does not say all.

    Only these few are joined; the others pass by the join."""
    rows = ends(events)
    if starts is None:
        unknown = (F.lit(None).cast("string").alias("begun_by"), F.lit(None).cast("timestamp").alias("begun_due"))
        told = rows.where(is_told_by_its_start()).select("*", *unknown)
    else:
        told = rows.where(is_told_by_its_start()).join(starts, _RUN, "left")
    told = told.withColumn("worker", F.when(is_stalled(), F.col("begun_by")).otherwise(F.col("worker")))
    told = told.withColumn("due_at", F.col("begun_due")).drop("begun_by", "begun_due")
    rows = rows.where(~is_told_by_its_start()).unionByName(told)
    rows = rows.select(
        "*",
        F.col("kind").alias("outcome"),
        F.col("at").alias("ended_at"),
        F.greatest(ms_between("due_at", "started_at"), F.lit(0)).alias("wait_ms"),
        ms_between("started_at", "at").alias("run_ms"),
    )
    return rows.select(*ATTEMPTS.columns)
