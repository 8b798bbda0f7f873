"""Everything that the report shows. Spark aggregates, so that only small results are collected."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from jobq.pipeline.insight.burn import Burn, burn_rates
from jobq.pipeline.insight.causes import Cause, dead_letters
from jobq.pipeline.insight.cost import Cost, costs
from jobq.pipeline.insight.scope import Scope
from jobq.pipeline.insight.standouts import Standout
from jobq.pipeline.insight.views import Question, find_new, find_slices, find_standouts
from jobq.pipeline.insight.workers import Trouble, WorkerUse, trouble, worker_use
from jobq.pipeline.lake import Lake
from jobq.pipeline.report.series import (
    Grid,
    QueueSeries,
    TaskSeries,
    WorkerSeries,
    queue_series,
    slices_of,
    task_series,
    worker_series,
)
from jobq.pipeline.tables import ATTEMPTS, ERRORS, EVENTS, QUEUE_MINUTE, SLO, TASK_HOUR

_POINTS = 120  # maximum points of a line: more would not be visible on the page
_FEWEST = 12  # minimum points: a line over less looks like an accident
_STEPS_S = (1, 2, 5, 10, 15, 30, 60, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)
_FINE_MS = 30 * 60_000  # a period up to this long is drawn in seconds, from events
_ROWS = 40  # maximum rows of a table; filters can only choose among these
_BURN_HOURS = 14 * 24  # maximum hours of the burn rates: the page draws the latest
_DAY_MS = 86_400_000

Row = dict[str, Any]


class Period(msgspec.Struct, frozen=True, kw_only=True):
    """The lines of one period."""

    queues: list[QueueSeries]
    tasks: list[TaskSeries]


class ReportData(msgspec.Struct, frozen=True, kw_only=True):
    """Everything on the page. `grid` is None if there are no events."""

    grid: Grid | None = None
    scope: Scope = Scope()
    days_back: int = 0
    now: Period = Period(queues=[], tasks=[])
    then: Period | None = None
    workers: WorkerSeries = WorkerSeries(covered_ms=[], busy_ms=[], present_ms=[])
    burn: list[Burn] = []
    standouts: list[Standout] = []
    dead: list[Cause] = []
    new: list[Cause] = []
    new_since_ms: int = 0
    costs: list[Cost] = []
    slo: list[Row] = []
    tasks: list[Row] = []
    reasons: list[Row] = []
    used: list[WorkerUse] = []
    trouble: list[Trouble] = []
    trouble_by_worker: list[Trouble] = []
    lake: Row = {}
    audit: Row | None = None


def gather(
    lake: Lake, scope: Scope, *, days_back: int = 7, new_since_ms: int | None = None
) -> ReportData:
    """Query the lake. `days_back` is how much earlier the other period is; 0 leaves it out."""
    facts: Row = {"lake": msgspec.to_builtins(lake.state.totals), "audit": _audit(lake)}
    grid = _grid(lake, scope)
    if grid is None:
        return ReportData(scope=scope, **facts)
    whole = _whole_days(scope, grid)
    if new_since_ms is None:
        new_since_ms = max(lake.state.max_at_ms - _DAY_MS, 0)
    asked = Question(scope, _ROWS, new_since_ms, days_back or 7)
    slices, slice_ms = slices_of(lake, whole, grid)
    task_hours, errors = whole.rows(lake, TASK_HOUR), scope.rows(lake, ERRORS)
    by_task = trouble(task_hours, ["tenant", "queue", "name"], _ROWS)
    return ReportData(
        grid=grid,
        scope=scope,
        days_back=days_back,
        now=_period(lake, whole, grid),
        then=_then(lake, whole, grid, days_back) if days_back else None,
        workers=worker_series(slices, slice_ms, grid),
        burn=_burn(lake, whole, grid),
        standouts=find_standouts(lake, asked)[:_ROWS] if days_back else [],
        dead=dead_letters(errors, _ROWS),
        new=find_new(lake, asked),
        new_since_ms=new_since_ms,
        costs=costs(task_hours, _ROWS),
        slo=_slo(whole.rows(lake, SLO)),
        tasks=_tasks(whole.rows(lake, ATTEMPTS)),
        reasons=_reasons(errors),
        used=worker_use(slices, _ROWS, slice_ms),
        trouble=by_task,
        trouble_by_worker=trouble(task_hours, ["worker"], _ROWS) if by_task else [],
        **facts,
    )


# ── the period ────────────────────────────────────────────────────────────────────────────────────


def _grid(lake: Lake, scope: Scope) -> Grid | None:
    """The points of the lines, at round times. None if the scope has no events."""
    first, last = _span(scope.rows(lake, QUEUE_MINUTE), "minute")
    if first is None or last is None:
        return None
    last += 60_000
    if last - first <= _FINE_MS:
        narrow = Scope(since=_day(first), until=_day(last), tenant=scope.tenant, queue=scope.queue)
        exact = _span(narrow.rows(lake, EVENTS), "at")
        if exact[0] is not None and exact[1] is not None:
            return fine_grid(exact[0], exact[1])
    return grid_over(first, last, 60)


def fine_grid(first_ms: int, last_ms: int) -> Grid:
    """The grid of a period of at most half an hour, in seconds if it is short."""
    return grid_over(first_ms, last_ms + 1, 1)


def grid_over(first_ms: int, end_ms: int, shortest_s: int) -> Grid:
    """Points at round times from `first_ms` to `end_ms`: not too many, and not too few."""
    for step_s in (s for s in _STEPS_S if s >= shortest_s):
        step = step_s * 1000
        start = first_ms // step * step
        count = -(-(end_ms - start) // step)
        if count <= _POINTS:
            break
    else:
        step = 86_400_000 * -(-(end_ms - first_ms) // (86_400_000 * _POINTS))
        start = first_ms // step * step
        count = -(-(end_ms - start) // step)
    return Grid(start, step, max(count, _FEWEST))


def _span(rows: DataFrame, at: str) -> tuple[int | None, int | None]:
    found = rows.select(F.min(F.unix_millis(at)), F.max(F.unix_millis(at))).first()
    return (None, None) if found is None else (found[0], found[1])


def _day(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).date().isoformat()


def _whole_days(scope: Scope, grid: Grid) -> Scope:
    return msgspec.structs.replace(
        scope,
        since=scope.since or _day(grid.start_ms),
        until=scope.until or _day(grid.end_ms - 1),
    )


def _period(lake: Lake, scope: Scope, grid: Grid) -> Period:
    return Period(queues=queue_series(lake, scope, grid), tasks=task_series(lake, scope, grid))


def _then(lake: Lake, scope: Scope, grid: Grid, days_back: int) -> Period | None:
    earlier = _period(lake, scope.shifted(days_back), grid.days_earlier(days_back))
    return earlier if earlier.queues or earlier.tasks else None


# ── tables ────────────────────────────────────────────────────────────────────────────────────────


def _rows(frame: DataFrame) -> list[Row]:
    return [row.asDict() for row in frame.limit(_ROWS).collect()]


def _burn(lake: Lake, scope: Scope, grid: Grid) -> list[Burn]:
    slices = find_slices(lake, scope)
    if not slices:
        return []
    last = max(one.hour for one in slices)
    first = max(grid.start_ms // 3_600_000, last - _BURN_HOURS + 1)
    return burn_rates(slices, range(first, last + 1))


def _reasons(errors: DataFrame) -> list[Row]:
    grouped = errors.groupBy("tenant", "queue", "name", "reason").agg(F.sum("count").alias("count"))
    return _rows(grouped.orderBy(F.desc("count"), "tenant", "queue", "name"))


def _tasks(runs: DataFrame) -> list[Row]:
    quantiles = F.percentile_approx("run_ms", F.array(F.lit(0.5), F.lit(0.95), F.lit(0.99)), 500)
    grouped = runs.groupBy("tenant", "queue", "name").agg(
        F.count(F.lit(1)).alias("runs"), F.max("run_ms").alias("max"), quantiles.alias("q")
    )
    found = (F.col("q")[n].alias(q) for n, q in enumerate(("p50", "p95", "p99")))
    shown = grouped.select("tenant", "queue", "name", "runs", "max", *found)
    return _rows(shown.orderBy(F.desc("p95")))


def _slo(rows: DataFrame) -> list[Row]:
    grouped = rows.groupBy("tenant", "queue", "target", "objective").agg(
        F.sum("good").alias("good"), F.sum("total").alias("total")
    )
    shown = grouped.withColumn("attainment", F.col("good") / F.col("total")).withColumn(
        "met", F.col("attainment") >= F.col("objective")
    )
    return _rows(shown.orderBy("met", F.col("attainment") - F.col("objective")))


def _audit(lake: Lake) -> Row | None:
    text = lake.files.read(f"{lake.root}/_jobq/audit.json")
    return None if text is None else msgspec.json.decode(text)
