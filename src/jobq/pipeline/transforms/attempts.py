"""`attempts`: every event that takes a job out of `active` is the end of a run, and mostly says all that is to know of it."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from jobq.pipeline.tables import ATTEMPTS

_RUN = ["tenant", "queue", "job", "life", "attempt"]
# Columns of events that neither `attempts` nor `errors` has.
_NOT_ASKED = ("id", "number", "shard", "actor", "state", "created_at", "finished_at")


def ms_between(start: str, end: str) -> Column:
    """Whole milliseconds from one timestamp to another."""
    return F.unix_millis(F.col(end)) - F.unix_millis(F.col(start))


def wait_ms() -> Column:
    """Milliseconds from due to start, never below 0; null if either is unknown."""
    wait = ms_between("due_at", "started_at")
    return F.when(wait < 0, 0).otherwise(wait)


def is_stalled() -> Column:
    """The run lost its lease: who recorded that is not who ran it."""
    return (F.col("kind") == "stalled") | (F.col("reason").eqNullSafe("stalled"))


def is_told_by_its_start() -> Column:
    """The end does not say all: it names the next time the job is due, or another worker than the one that ran it."""
    return F.col("kind").isin("retried", "snoozed", "blocked") | is_stalled()


def ends(events: DataFrame) -> DataFrame:
    """The events that end a run."""
    return events.where(F.col("previous") == "active")


def special(events: DataFrame) -> DataFrame:
    """A few in a hundred: the ends that do not say all, and every failure. Read once, for `starts_wanted`, `attempts` and
    `errors`."""
    failed = F.col("kind").isin("retried", "failed")
    return events.where(failed | ((F.col("previous") == "active") & is_told_by_its_start())).drop(
        *_NOT_ASKED
    )


def starts_wanted(special: DataFrame) -> DataFrame:
    """The runs whose beginning has to be looked up, with its time."""
    told = ends(special).where(is_told_by_its_start())
    return told.where(F.col("started_at").isNotNull()).select(*_RUN, "started_at")


def starts_found(wanted: DataFrame, candidates: DataFrame) -> DataFrame:
    """Of the candidates, the beginnings of the wanted runs."""
    begun = candidates.where(F.col("kind") == "started").select(
        *_RUN, F.col("worker").alias("begun_by"), F.col("due_at").alias("begun_due")
    )
    return begun.join(wanted.select(*_RUN), _RUN, "left_semi")


def attempts(events: DataFrame, special: DataFrame, starts: DataFrame | None = None) -> DataFrame:
    """One row per run that ended. `special`: those of `events`. `starts`: what `starts_found` answered for them.

    Only these few are joined; the others pass by the join."""
    told = ends(special).where(is_told_by_its_start())
    if starts is None:
        told = told.select(
            "*",
            F.lit(None).cast("string").alias("begun_by"),
            F.lit(None).cast("timestamp").alias("begun_due"),
        )
    else:
        told = told.join(starts, _RUN, "left")
    told = told.withColumn(
        "worker", F.when(is_stalled(), F.col("begun_by")).otherwise(F.col("worker"))
    )
    told = told.withColumn("due_at", F.col("begun_due")).drop("begun_by", "begun_due")
    rows = ends(events).where(~is_told_by_its_start()).drop(*_NOT_ASKED).unionByName(told)
    rows = rows.select(
        "*",
        F.col("kind").alias("outcome"),
        F.col("at").alias("ended_at"),
        wait_ms().alias("wait_ms"),
        ms_between("started_at", "at").alias("run_ms"),
    )
    return rows.select(*ATTEMPTS.columns)
