"""The table `attempts`: one row per run that has ended.

Every event that moves a job out of `active` is the end of a run. Most of these events contain all
facts about the run. For the others, the event of the run's start is joined."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from jobq.pipeline.tables import ATTEMPTS

_RUN = ["tenant", "queue", "job", "life", "attempt"]
# Columns of events that neither `attempts` nor `errors` needs.
_UNUSED = ("id", "number", "shard", "actor", "state", "created_at", "finished_at")


def ms_between(start: str, end: str) -> Column:
    """Whole milliseconds from one timestamp to another."""
    return F.unix_millis(F.col(end)) - F.unix_millis(F.col(start))


def wait_ms() -> Column:
    """Milliseconds from due to start, never below 0; null if either is unknown."""
    wait = ms_between("due_at", "started_at")
    return F.when(wait < 0, 0).otherwise(wait)


def is_stalled() -> Column:
    """Whether the run lost its lease. The event's worker is then not the one that ran the job."""
    return (F.col("kind") == "stalled") | (F.col("reason").eqNullSafe("stalled"))


def needs_start() -> Column:
    """Whether the end lacks facts: it has the next run's due time, or another worker."""
    return F.col("kind").isin("retried", "snoozed", "blocked") | is_stalled()


def ends(events: DataFrame) -> DataFrame:
    """The events that end a run."""
    return events.where(F.col("previous") == "active")


def special(events: DataFrame) -> DataFrame:
    """The ends that need their start, and all failures: a few percent of the events.

    Cached by the caller, because `starts_wanted`, `attempts` and `errors` all read them."""
    failed = F.col("kind").isin("retried", "failed")
    return events.where(failed | ((F.col("previous") == "active") & needs_start())).drop(*_UNUSED)


def starts_wanted(special: DataFrame) -> DataFrame:
    """The runs whose start must be looked up, with the time of the start."""
    incomplete = ends(special).where(needs_start())
    return incomplete.where(F.col("started_at").isNotNull()).select(*_RUN, "started_at")


def starts_found(wanted: DataFrame, candidates: DataFrame) -> DataFrame:
    """The starts of the wanted runs, among the candidates."""
    started = candidates.where(F.col("kind") == "started").select(
        *_RUN, F.col("worker").alias("begun_by"), F.col("due_at").alias("begun_due")
    )
    return started.join(wanted.select(*_RUN), _RUN, "left_semi")


def attempts(events: DataFrame, special: DataFrame, starts: DataFrame | None = None) -> DataFrame:
    """One row per run that has ended.

    `special` are the special events among `events`, and `starts` is the result of `starts_found`
    for them. Only these few are joined."""
    incomplete = ends(special).where(needs_start())
    if starts is None:
        incomplete = incomplete.select(
            "*",
            F.lit(None).cast("string").alias("begun_by"),
            F.lit(None).cast("timestamp").alias("begun_due"),
        )
    else:
        incomplete = incomplete.join(starts, _RUN, "left")
    incomplete = incomplete.withColumn(
        "worker", F.when(is_stalled(), F.col("begun_by")).otherwise(F.col("worker"))
    )
    incomplete = incomplete.withColumn("due_at", F.col("begun_due")).drop("begun_by", "begun_due")
    rows = ends(events).where(~needs_start()).drop(*_UNUSED).unionByName(incomplete)
    rows = rows.select(
        "*",
        F.col("kind").alias("outcome"),
        F.col("at").alias("ended_at"),
        wait_ms().alias("wait_ms"),
        ms_between("started_at", "at").alias("run_ms"),
    )
    return rows.select(*ATTEMPTS.columns)
