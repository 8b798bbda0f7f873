"""The lines of the report: counts, backlog, and histograms of durations, per queue and task.

The page adds them up for the tenant, queue and task that its reader selects. Percentiles cannot be
added up, so durations are kept as histograms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from jobq.pipeline.insight.scope import Scope
from jobq.pipeline.insight.workers import MINUTE_MS, minutes
from jobq.pipeline.lake import Lake
from jobq.pipeline.tables import ATTEMPTS, EVENTS, QUEUE_MINUTE, WORKER_MINUTE
from jobq.pipeline.transforms.runs import ending, worker_slices

MOST_SERIES = 40
"""Queues, and tasks, with lines of their own. All others are added up as `OTHER`. With 120 points,
40 tasks make a page of about 1 MB."""
OTHER = "(other)"

COUNTED = ("accepted", "completed", "failed", "cancelled", "retried", "stalled")
ENDINGS = ("completed", "failed", "retried", "stalled", "cancelled", "returned")
PER_DOUBLING = 4
"""Buckets of a histogram per doubling of the duration: a percentile is off by 9 % at most."""


class Grid(NamedTuple):
    """The points of the lines: `points` steps from `start_ms` on."""

    start_ms: int
    step_ms: int
    points: int

    @property
    def end_ms(self) -> int:
        """The end of the last point."""
        return self.start_ms + self.points * self.step_ms

    def point(self, at: Column) -> Column:
        """The number of the point that a time in ms belongs to."""
        return F.floor((at - self.start_ms) / self.step_ms).cast("int").alias("i")

    def within(self, at: Column) -> Column:
        """Whether a time in ms belongs to any point."""
        return (at >= self.start_ms) & (at < self.end_ms)

    def days_earlier(self, days: int) -> Grid:
        """The same points, some days earlier."""
        return self._replace(start_ms=self.start_ms - days * 86_400_000)


class QueueSeries(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of one queue, and its backlog at the end of each point."""

    tenant: str
    queue: str
    counts: dict[str, list[int]]
    waiting: list[int]


class TaskSeries(msgspec.Struct, frozen=True, kw_only=True):
    """The runs of one task that ended in each point, by ending, and histograms of durations.

    A histogram is a list: bucket, count, bucket, count, …"""

    tenant: str
    queue: str
    name: str
    counts: dict[str, list[int]]
    wait: list[list[int]]
    run: list[list[int]]


class WorkerSeries(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds per point, of all workers: busy, running jobs in parallel, and present."""

    covered_ms: list[int]
    busy_ms: list[int]
    present_ms: list[int]


def bucket(ms: Column) -> Column:
    """The bucket of a duration."""
    return F.ceil(F.log2(F.greatest(ms, F.lit(0)) + 1) * PER_DOUBLING).cast("int")


def middle_ms(number: int) -> float:
    """The duration in the middle of a bucket."""
    return 2 ** (max(number - 0.5, 0) / PER_DOUBLING) - 1


def percentile(histograms: Sequence[Sequence[int]], rank: float) -> float | None:
    """The percentile over several histograms, by nearest rank. None if they are empty."""
    counts: dict[int, int] = {}
    for one in histograms:
        for number, n in zip(one[::2], one[1::2], strict=True):
            counts[number] = counts.get(number, 0) + n
    wanted = math.ceil(sum(counts.values()) * rank)
    for number in sorted(counts):
        wanted -= counts[number]
        if wanted <= 0:
            return middle_ms(number)
    return None


# ── queues ────────────────────────────────────────────────────────────────────────────────────────


def queue_series(lake: Lake, scope: Scope, grid: Grid) -> list[QueueSeries]:
    """The queues of the scope, those with the most jobs first.

    A step of less than a minute is counted from events, because the table has only minutes."""
    table = scope.rows(lake, QUEUE_MINUTE)
    at = F.unix_millis("minute")
    whole_minute = grid.start_ms // MINUTE_MS * MINUTE_MS
    inside = table.where((at >= whole_minute) & (at < grid.end_ms))
    if grid.step_ms >= MINUTE_MS:
        rows = inside.select("tenant", "queue", grid.point(at), *COUNTED, "waiting_change")
    else:
        rows = _of_events(scope.rows(lake, EVENTS), grid)
    # The backlog before the first minute of the grid.
    opening = inside.groupBy("tenant", "queue").agg(
        F.min_by(F.expr("waiting - waiting_change"), "minute").alias("waiting_change")
    )
    rows = rows.unionByName(opening.withColumn("i", F.lit(-1)), allowMissingColumns=True)
    rows = _merged(rows, ["tenant", "queue"], F.sum("accepted") + F.sum("completed"))
    sums = rows.groupBy("tenant", "queue", "i").agg(
        *(F.sum(name).alias(name) for name in (*COUNTED, "waiting_change"))
    )
    return _queues(sums, grid)


def _of_events(events: DataFrame, grid: Grid) -> DataFrame:
    at = F.unix_millis("at")
    moved = events.where(F.col("state").isNotNull() & grid.within(at))
    change = (F.col("state") == "waiting").cast("int") - F.coalesce(
        (F.col("previous") == "waiting").cast("int"), F.lit(0)
    )
    return moved.select(
        "tenant",
        "queue",
        grid.point(at),
        *((F.col("kind") == name).cast("int").alias(name) for name in COUNTED),
        change.alias("waiting_change"),
    )


def _queues(sums: DataFrame, grid: Grid) -> list[QueueSeries]:
    found: dict[tuple[str, str], dict[str, list[int]]] = {}
    for row in sums.collect():
        # The first entry is the time before the grid.
        lines = found.setdefault(
            (row["tenant"], row["queue"]),
            {name: [0] * (grid.points + 1) for name in (*COUNTED, "waiting_change")},
        )
        for name, line in lines.items():
            line[row["i"] + 1] += row[name] or 0
    made = []
    for (tenant, queue), lines in found.items():
        level, waiting = 0, []
        for change in lines.pop("waiting_change"):
            level += change
            waiting.append(level)
        counts = {name: line[1:] for name, line in lines.items()}
        made.append(QueueSeries(tenant=tenant, queue=queue, counts=counts, waiting=waiting[1:]))
    return sorted(made, key=lambda one: (-sum(one.counts["accepted"]), one.tenant, one.queue))


# ── tasks ─────────────────────────────────────────────────────────────────────────────────────────


def task_series(lake: Lake, scope: Scope, grid: Grid) -> list[TaskSeries]:
    """The tasks of the scope, those with the most runs first."""
    at = F.unix_millis("ended_at")
    runs = scope.rows(lake, ATTEMPTS).where(grid.within(at))
    who = ["tenant", "queue", "name"]
    runs = _merged(runs, who, F.count(F.lit(1)))

    def fact(kind: str, value: Column) -> Column:
        return F.struct(F.lit(kind).alias("kind"), value.cast("string").alias("value"))

    facts = F.array(
        fact("ending", ending()),
        fact("wait", bucket(F.col("wait_ms"))),
        fact("run", bucket(F.col("run_ms"))),
    )
    counted = (
        runs.select(*who, grid.point(at), F.explode(facts).alias("f"))
        .where("f.value IS NOT NULL")
        .groupBy(*who, "i", "f.kind", "f.value")
        .count()
    )
    made: dict[tuple[str, str, str], TaskSeries] = {}
    for tenant, queue, name, i, kind, value, n in counted.collect():
        series = made.setdefault((tenant, queue, name), _empty_task(tenant, queue, name, grid))
        if kind == "ending":
            series.counts[value][i] += n
        else:
            (series.wait if kind == "wait" else series.run)[i].extend((int(value), n))
    return sorted(made.values(), key=lambda one: (-_runs(one), one.tenant, one.queue, one.name))


def _empty_task(tenant: str, queue: str, name: str, grid: Grid) -> TaskSeries:
    return TaskSeries(
        tenant=tenant,
        queue=queue,
        name=name,
        counts={name: [0] * grid.points for name in ENDINGS},
        wait=[[] for _ in range(grid.points)],
        run=[[] for _ in range(grid.points)],
    )


def _runs(series: TaskSeries) -> int:
    return sum(map(sum, series.counts.values()))


def _merged(rows: DataFrame, who: list[str], weight: Column) -> DataFrame:
    """Rows in which all but the heaviest groups are called OTHER, so that few are collected."""
    heaviest = (
        rows.groupBy(*who).agg(weight.alias("w")).orderBy(F.desc("w"), *who).limit(MOST_SERIES + 1)
    ).collect()
    if len(heaviest) <= MOST_SERIES:
        return rows
    kept = [[row[name] for name in who] for row in heaviest[: MOST_SERIES - 1]]
    name_of = F.to_json(F.struct(*who))
    names = rows.sparkSession.createDataFrame(kept, ", ".join(f"{name} string" for name in who))
    known = [row[0] for row in names.select(name_of).collect()]
    is_kept = name_of.isin(known)
    return rows.withColumns({name: F.when(is_kept, F.col(name)).otherwise(OTHER) for name in who})


# ── workers ───────────────────────────────────────────────────────────────────────────────────────


def slices_of(lake: Lake, scope: Scope, grid: Grid) -> tuple[DataFrame, int]:
    """The slices in which workers ran jobs, and their length in ms."""
    if grid.step_ms >= MINUTE_MS:
        slices, length = minutes(scope.rows(lake, WORKER_MINUTE)), MINUTE_MS
    else:
        length = grid.step_ms
        slices = worker_slices(
            Scope(since=scope.since, until=scope.until).rows(lake, ATTEMPTS), length
        )
    return slices.where(grid.within(F.col("at_ms"))), length


def worker_series(slices: DataFrame, slice_ms: int, grid: Grid) -> WorkerSeries:
    """Sums over all workers. A worker is present from its first slice to the end of its last."""
    busy = slices.groupBy(grid.point(F.col("at_ms"))).agg(
        F.sum("covered_ms").alias("covered"), F.sum("busy_ms").alias("busy")
    )
    lives = slices.groupBy("worker").agg(
        F.min("at_ms").alias("a"), (F.max("at_ms") + slice_ms).alias("b")
    )
    points = F.sequence(grid.point(F.col("a")), grid.point(F.col("b") - 1))
    start = F.col("i") * grid.step_ms + F.lit(grid.start_ms)
    within = F.least("b", start + grid.step_ms) - F.greatest("a", start)
    present = lives.select("a", "b", F.explode(points).alias("i")).groupBy("i").agg(F.sum(within))
    covered_ms, busy_ms, present_ms = ([0] * grid.points for _ in range(3))
    for i, covered, running in busy.collect():
        covered_ms[i], busy_ms[i] = covered, running
    for i, ms in present.collect():
        if i < grid.points:
            present_ms[i] = ms
    return WorkerSeries(covered_ms=covered_ms, busy_ms=busy_ms, present_ms=present_ms)
