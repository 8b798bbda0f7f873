"""`queue_minute` and, added up from it, `tenant_day`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from jobq.pipeline.slo import Target
from jobq.pipeline.tables import QUEUE_MINUTE, TENANT_DAY
from jobq.pipeline.transforms.attempts import ms_between, wait_ms

_QUEUE = ["tenant", "queue"]
_RETURNED = ["snoozed", "released", "limited", "blocked"]
_BEGUN = ["accepted", "rerun"]
_ENDED = ["completed", "failed", "cancelled"]
_COUNTED = ["accepted", "rerun", "started", "completed", "failed", "cancelled", "retried", "stalled"]
_QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}

COUNTS = [*_COUNTED, "returned", "wait_ms", "run_ms", "waiting_change", "held_change"]
_MEASURES = [*(f"{what}_{q}" for what in ("wait", "run") for q in _QUANTILES), *COUNTS]


def steps(events: DataFrame, targets: Sequence[Target] = ()) -> DataFrame:
    """How often each kind of step was made, per queue and minute `m` (since the epoch), with the sums of `wait` and `run` and,
    for the nth target that has a limit, how many were within it (`good<n>`). A few rows per minute, from which `changes` and
    `slo` are made: so events are read once for both."""
    timed = _timed(events)
    within = [F.count_if(F.col(what) <= target.within_ms).alias(good(n)) for n, target, what in limited(targets)]
    return timed.groupBy(*_QUEUE, "m", "kind", "previous", "state").agg(
        F.count(F.lit(1)).alias("n"), F.sum("wait").alias("wait"), F.sum("run").alias("run"), *within
    )


def good(n: int) -> str:
    """The column of `steps` for the nth target."""
    return f"good{n}"


def limited(targets: Sequence[Target]) -> Iterator[tuple[int, Target, str]]:
    """Targets that have a limit: their number, themselves, and what is limited (`wait` or `run`)."""
    for n, target in enumerate(targets):
        if not target.succeed:
            yield n, target, "run" if target.start_within is None else "wait"


def changes(events: DataFrame, made: DataFrame) -> DataFrame:
    """Per queue and minute: counts, percentiles, and by how much the backlog changed (no levels yet). `made`: their `steps`.

    Counting and percentiles are apart, because Spark does not compile an aggregation with percentiles as a whole, and the
    twenty counts need not suffer from that."""
    both = _counts(made).join(_percentiles(_timed(events)), [*_QUEUE, "m"], "left")
    return both.withColumn("minute", F.timestamp_millis(F.col("m") * 60_000)).select(*_QUEUE, "minute", *_MEASURES)


def _timed(events: DataFrame) -> DataFrame:
    return events.where(F.col("kind") != "gap").select(
        *_QUEUE,
        F.expr("unix_millis(at) div 60000").alias("m"),  # by number: date_trunc asks the time zone for every row
        "kind",
        "previous",
        "state",
        F.when(F.col("kind") == "started", wait_ms()).alias("wait"),
        F.when(F.col("previous") == "active", ms_between("started_at", "at")).alias("run"),
    )


def _counts(steps: DataFrame) -> DataFrame:
    """The steps of a minute as columns."""

    def total(condition: Column) -> Column:
        return F.sum(F.when(condition, F.col("n")).otherwise(0))

    kind = F.col("kind")
    became = total(F.col("state") == "waiting") - total(F.coalesce(F.col("previous") == "waiting", F.lit(False)))
    return steps.groupBy(*_QUEUE, "m").agg(
        *(total(kind == name).alias(name) for name in _COUNTED),
        total(kind.isin(_RETURNED)).alias("returned"),
        F.coalesce(F.sum("wait"), F.lit(0)).alias("wait_ms"),
        F.coalesce(F.sum("run"), F.lit(0)).alias("run_ms"),
        became.alias("waiting_change"),
        (total(kind.isin(_BEGUN)) - total(kind.isin(_ENDED))).alias("held_change"),
    )


def _percentiles(timed: DataFrame) -> DataFrame:
    """By nearest rank, from all values of a minute: exact, and two thirds of percentile_approx's time at this group size."""
    kept = timed.where("wait IS NOT NULL OR run IS NOT NULL").groupBy(*_QUEUE, "m")
    found = kept.agg(*(F.sort_array(F.collect_list(what)).alias(what) for what in ("wait", "run")))
    # An index past the end (no values: rank 0, index -1) is null by get.
    parts = [
        F.expr(f"double(get({what}, int(ceil(size({what}) * {rank})) - 1))").alias(f"{what}_{q}")
        for what in ("wait", "run")
        for q, rank in _QUANTILES.items()
    ]
    return found.select(*_QUEUE, "m", *parts)


def queue_minute(minutes: DataFrame, before: DataFrame, days: DataFrame) -> DataFrame:
    """Minutes with changes (of whole days) as QUEUE_MINUTE rows with levels.

    `before`: `waiting` and `held` of each queue when the first of these days began. `days`: the days (column `day`). Every
    queue that holds anything gets a row at the start of each day, so that the next day finds its level in this one's rows.
    """
    opening = before.select(*_QUEUE, F.col("waiting").alias("waiting_change"), F.col("held").alias("held_change"))
    opening = opening.select("*", F.lit(None).cast("timestamp").alias("minute"), F.lit(False).alias("real"))
    queues = before.select(*_QUEUE).unionByName(minutes.select(*_QUEUE)).distinct()
    marks = queues.crossJoin(F.broadcast(days)).select(
        *_QUEUE, F.col("day").cast("timestamp").alias("minute"), F.lit(False).alias("real")
    )
    rows = minutes.select(*_QUEUE, "minute", *_MEASURES, F.lit(True).alias("real"))
    marks = marks.join(rows.select(*_QUEUE, "minute"), [*_QUEUE, "minute"], "left_anti")
    rows = (
        rows.unionByName(marks, allowMissingColumns=True).fillna(0, subset=COUNTS).unionByName(opening, allowMissingColumns=True)
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
    kept = levels.where(F.col("minute").isNotNull() & (F.col("real") | (F.col("held") != 0) | (F.col("waiting") != 0)))
    return kept.select(*QUEUE_MINUTE.columns)


def last_levels(minutes: DataFrame) -> DataFrame:
    """Where each queue stood at the end of these minutes."""
    latest = minutes.groupBy(*_QUEUE).agg(F.max_by(F.struct("waiting", "held"), "minute").alias("level"))
    return latest.select(*_QUEUE, "level.waiting", "level.held")


def tenant_day(minutes: DataFrame) -> DataFrame:
    """QUEUE_MINUTE rows of whole days, added up."""
    sums = [column.name for column in TENANT_DAY.body if column.name not in (*_QUEUE, "held")]
    grouped = minutes.groupBy(*_QUEUE, "day").agg(
        *(F.sum(name).alias(name) for name in sums), F.max_by("held", "minute").alias("held")
    )
    return grouped.select(*TENANT_DAY.columns)
