"""Tables of runs: `attempts` has a row per run; `task_hour`, `errors`, `worker_minute` add up.

Every event that moves a job out of `active` is the end of a run. Most of these events contain all
facts about the run. For the others, the event of the run's start is joined.

(id, life, attempt) may repeat: after a purge, a new job of an id begins again in life 0. Its events
have higher numbers than those of the first, from its `accepted` on. So the start of a run is the
last one before its end.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from jobq.pipeline.tables import ATTEMPTS, ERRORS, TASK_HOUR, WORKER_MINUTE

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


# The table `task_hour`: what the runs of each task on each worker came to, hour by hour.

_KEYS = ["tenant", "queue", "name", "worker", "day", "hour"]
_LOST = ("retried", "failed", "stalled")


def ending() -> Column:
    """How a run ended, in one word per run: the names of the counts of `task_hour`."""
    outcome = F.col("outcome")
    return (
        F.when(F.col("reason").eqNullSafe("stalled"), "stalled")
        .when(outcome.isin("snoozed", "released", "limited", "blocked"), "returned")
        .otherwise(outcome)
    )


def task_hour(attempts: DataFrame) -> DataFrame:
    """Count the runs of whole hours, and add up their time."""
    ended = attempts.select(*_KEYS, ending().alias("ending"), "run_ms", "wait_ms")
    counts = [
        F.count_if(F.col("ending") == name).alias(name)
        for name in ("completed", "retried", "failed", "stalled", "cancelled", "returned")
    ]
    lost = F.when(F.col("ending").isin(*_LOST), F.col("run_ms"))
    sums = {"run_ms": F.col("run_ms"), "lost_ms": lost, "wait_ms": F.col("wait_ms")}
    grouped = ended.groupBy(*_KEYS).agg(
        F.count(F.lit(1)).alias("runs"),
        *counts,
        *(F.coalesce(F.sum(ms), F.lit(0)).alias(name) for name, ms in sums.items()),
    )
    return grouped.select(*TASK_HOUR.columns)


# The table `errors`: failures by cause and hour, with the latest one as the example.


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


# The table `worker_minute`: runs are cut at full minutes and added up per worker and minute.

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
