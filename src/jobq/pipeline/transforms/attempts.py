"""The table `attempts`: one row per run that has ended.

Every event that moves a job out of `active` is the end of a run. Most of these events contain all
facts about the run. For the others, the event of the run's start is joined.

(id, life, attempt) may repeat: after a purge, a new job of an id begins again in life 0. Its events
have higher numbers than those of the first, from its `accepted` on. So the start of a run is the
last one before its end."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from jobq.pipeline.tables import ATTEMPTS

_RUN = ["tenant", "queue", "job", "life", "attempt", "started_at"]
# Columns of events that neither `attempts` nor `errors` needs.
_UNUSED = ("id", "shard", "actor", "state", "created_at", "finished_at")


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
    """The runs whose start must be looked up."""
    incomplete = ends(special).where(needs_start())
    return incomplete.where(F.col("started_at").isNotNull()).select(*_RUN)


def starts_found(wanted: DataFrame, candidates: DataFrame) -> DataFrame:
    """The starts of the wanted runs, among the candidates; and those of runs that look the same."""
    started = candidates.where(F.col("kind") == "started").select(
        *_RUN,
        F.coalesce("number", F.lit(0)).alias("begun"),
        F.col("worker").alias("begun_by"),
        F.col("due_at").alias("begun_due"),
    )
    return started.join(wanted, _RUN, "left_semi")


def _last_start(joined: DataFrame) -> DataFrame:
    """Ends with all starts of their job, life and attempt: only the last start before each end."""
    # Events of jobq 0.1 have no numbers.
    begun = F.when(F.col("begun") <= F.coalesce("number", F.lit(0)), F.col("begun"))
    line = Window.partitionBy(*_RUN, "kind", "at", "number").orderBy(begun.desc_nulls_last())
    found = joined.withColumn("nth", F.row_number().over(line)).where("nth = 1")
    for name in ("begun_by", "begun_due"):
        found = found.withColumn(name, F.when(begun.isNotNull(), F.col(name)))
    return found.drop("nth", "begun")


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
        incomplete = _last_start(incomplete.join(starts, _RUN, "left"))
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
