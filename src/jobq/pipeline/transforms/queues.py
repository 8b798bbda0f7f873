"""The table `queue_minute`, and `tenant_day`, which sums it up."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from jobq.pipeline.slo import Target
from jobq.pipeline.tables import QUEUE_MINUTE, TENANT_DAY
from jobq.pipeline.transforms.runs import ms_between, wait_ms

_QUEUE = ["tenant", "queue"]
_RETURNED = ["snoozed", "released", "limited", "blocked"]
_BEGUN = ["accepted", "rerun"]
_ENDED = ["completed", "failed", "cancelled"]
_COUNTED = [
    "accepted",
    "rerun",
    "started",
    "completed",
    "failed",
    "cancelled",
    "retried",
    "stalled",
]
_QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}

COUNTS = [*_COUNTED, "returned", "wait_ms", "run_ms", "waiting_change", "held_change"]
_MEASURES = [*(f"{what}_{q}" for what in ("wait", "run") for q in _QUANTILES), *COUNTS]


def steps(events: DataFrame, targets: Sequence[Target] = ()) -> DataFrame:
    """Count transitions per queue, minute and kind, so that several tables read events once.

    `m` is the minute and `began` the hour in which the ended runs started, both since the epoch.
    `n` is the number of transitions. `values` are their durations in ms (due to start for
    `started`, start to end for the end of a run), and `ms` is the sum. `good<n>` counts those
    within the time limit of the nth target. `changes`, `slo` and `spans` use the result, which has
    a few rows per minute."""
    limits = [(n, target.within_ms) for n, target in enumerate(targets) if not target.succeed]
    within = [F.count_if(F.col("ms") <= limit).alias(good(n)) for n, limit in limits]
    return (
        _timed(events)
        .groupBy(*_QUEUE, "m", "kind", "previous", "state", "began")
        .agg(
            F.count(F.lit(1)).alias("n"),
            F.sum("ms").alias("ms"),
            F.collect_list("ms").alias("values"),
            *within,
        )
    )


def spans(steps: DataFrame) -> DataFrame:
    """The hours (since the epoch) in which runs `began` and `ended`.

    `irregular` says whether some of these runs did not complete."""
    ended = F.expr("m div 60").alias("ended")
    each = steps.where("began IS NOT NULL").groupBy("began", ended)
    return each.agg(F.bool_or(F.col("kind") != "completed").alias("irregular"))


def good(n: int) -> str:
    """The column of `steps` with the count for the nth target."""
    return f"good{n}"


def _timed(events: DataFrame) -> DataFrame:
    ended = F.col("previous") == "active"
    transitions = events.where(F.col("state").isNotNull())  # no gaps, no operations on queues
    return transitions.select(
        *_QUEUE,
        # Integer arithmetic: date_trunc would look up the time zone for every row.
        F.expr("unix_millis(at) div 60000").alias("m"),
        "kind",
        "previous",
        "state",
        F.when(F.col("kind") == "started", wait_ms())
        .when(ended, ms_between("started_at", "at"))
        .alias("ms"),
        F.when(ended, F.expr("unix_millis(started_at) div 3600000")).alias("began"),
    )


def changes(steps: DataFrame) -> DataFrame:
    """Counts, percentiles and changes of the backlog per queue and minute, without levels."""

    def total(condition: Column, what: str = "n") -> Column:
        return F.coalesce(F.sum(F.when(condition, F.col(what))), F.lit(0))

    def sorted_values(condition: Column) -> Column:
        return F.sort_array(F.flatten(F.collect_list(F.when(condition, F.col("values")))))

    kind, started = F.col("kind"), F.col("kind") == "started"
    became = total(F.col("state") == "waiting") - total(F.col("previous") == "waiting")
    minutes = steps.groupBy(*_QUEUE, "m").agg(
        *(total(kind == name).alias(name) for name in _COUNTED),
        total(kind.isin(_RETURNED)).alias("returned"),
        total(started, "ms").alias("wait_ms"),
        total(~started, "ms").alias("run_ms"),
        became.alias("waiting_change"),
        (total(kind.isin(_BEGUN)) - total(kind.isin(_ENDED))).alias("held_change"),
        sorted_values(started).alias("wait"),
        sorted_values(~started).alias("run"),
    )
    found = [
        _percentile(what, rank).alias(f"{what}_{q}")
        for what in ("wait", "run")
        for q, rank in _QUANTILES.items()
    ]
    return minutes.select(
        *_QUEUE, F.timestamp_millis(F.col("m") * 60_000).alias("minute"), *found, *COUNTS
    )


def _percentile(what: str, rank: float) -> Column:
    """The exact percentile of sorted values, by nearest rank. Null if there are no values."""
    return F.expr(f"double(get({what}, int(ceil(size({what}) * {rank})) - 1))")


def queue_minute(minutes: DataFrame, before: DataFrame, days: DataFrame) -> DataFrame:
    """Add levels to the changes of whole days. Returns QUEUE_MINUTE rows.

    `before` has each queue's `waiting` and `held` at the start of the first day, and `days` has the
    days. Every queue that holds jobs gets a row at the start of each day, so that the levels of a
    day can be read from the rows of the day before.
    """
    opening = before.select(
        *_QUEUE, F.col("waiting").alias("waiting_change"), F.col("held").alias("held_change")
    )
    opening = opening.select(
        "*", F.lit(None).cast("timestamp").alias("minute"), F.lit(False).alias("real")
    )
    queues = before.select(*_QUEUE).unionByName(minutes.select(*_QUEUE)).distinct()
    marks = queues.crossJoin(F.broadcast(days)).select(
        *_QUEUE, F.col("day").cast("timestamp").alias("minute"), F.lit(False).alias("real")
    )
    rows = minutes.select(*_QUEUE, "minute", *_MEASURES, F.lit(True).alias("real"))
    marks = marks.join(rows.select(*_QUEUE, "minute"), [*_QUEUE, "minute"], "left_anti")
    rows = (
        rows.unionByName(marks, allowMissingColumns=True)
        .fillna(0, subset=COUNTS)
        .unionByName(opening, allowMissingColumns=True)
    )
    line = (
        Window.partitionBy(*_QUEUE)
        .orderBy(F.col("minute").asc_nulls_first())
        .rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    levels = rows.select(
        "*",
        F.sum("waiting_change").over(line).alias("waiting"),
        F.sum("held_change").over(line).alias("held"),
        F.to_date("minute").alias("day"),
    )
    kept = levels.where(
        F.col("minute").isNotNull()
        & (F.col("real") | (F.col("held") != 0) | (F.col("waiting") != 0))
    )
    return kept.select(*QUEUE_MINUTE.columns)


def last_levels(minutes: DataFrame) -> DataFrame:
    """The levels of each queue at the end of these minutes."""
    latest = minutes.groupBy(*_QUEUE).agg(
        F.max_by(F.struct("waiting", "held"), "minute").alias("level")
    )
    return latest.select(*_QUEUE, "level.waiting", "level.held")


def tenant_day(minutes: DataFrame) -> DataFrame:
    """Sum up the QUEUE_MINUTE rows of whole days."""
    sums = [column.name for column in TENANT_DAY.body if column.name not in (*_QUEUE, "held")]
    grouped = minutes.groupBy(*_QUEUE, "day").agg(
        *(F.sum(name).alias(name) for name in sums), F.max_by("held", "minute").alias("held")
    )
    return grouped.select(*TENANT_DAY.columns)
