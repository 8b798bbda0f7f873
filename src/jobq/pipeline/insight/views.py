"""The answers by name, as rows for people and programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from typing import Any, NamedTuple

import msgspec
from pyspark.sql import functions as F

from jobq.pipeline.insight.burn import LONG_HOURS, Burn, Slice, burn_rates
from jobq.pipeline.insight.causes import Cause, dead_letters, new_failures
from jobq.pipeline.insight.cost import costs
from jobq.pipeline.insight.scope import Scope
from jobq.pipeline.insight.standouts import Standout, TaskSums, standouts
from jobq.pipeline.insight.workers import minutes, trouble, worker_use
from jobq.pipeline.lake import Lake
from jobq.pipeline.tables import ERRORS, SLO, TASK_HOUR, WORKER_MINUTE

Row = dict[str, Any]
_DAY_MS = 86_400_000


class Question(NamedTuple):
    """What a view is asked."""

    scope: Scope
    limit: int = 100  # rows
    after_ms: int | None = None  # of new-failures; None: a day before the latest event
    days_back: int = 7  # of standouts: how much earlier the other period is
    per_hour: float | None = None  # of cost: the price of an hour of run time


class View(NamedTuple):
    """A view: its name, what it shows, its columns, and the function that finds its rows."""

    name: str
    doc: str
    columns: tuple[str, ...]
    rows: Callable[[Lake, Question], list[Row]]


def utc(ms: int) -> str:
    """A time as people and databases read it, in UTC, to the second."""
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


# ── failures ──────────────────────────────────────────────────────────────────────────────────────

_CAUSE = (
    *("tenant", "queue", "tasks", "reason", "fingerprint", "dead", "failures"),
    *("first_at", "last_at", "example", "example_job", "command"),
)


def _cause_row(cause: Cause) -> Row:
    row = {name: getattr(cause, name) for name in _CAUSE if not name.endswith("_at")}
    row |= {"tasks": ", ".join(name or "" for name in cause.tasks)}
    return {**row, "first_at": utc(cause.first_ms), "last_at": utc(cause.last_ms)}


def _dead(lake: Lake, asked: Question) -> list[Row]:
    found = dead_letters(asked.scope.rows(lake, ERRORS), asked.limit)
    return [_cause_row(cause) for cause in found]


def _new(lake: Lake, asked: Question) -> list[Row]:
    return [_cause_row(cause) for cause in find_new(lake, asked)]


def find_new(lake: Lake, asked: Question) -> list[Cause]:
    """The new failures. All days are read: a cause is new only if no earlier day has it."""
    after_ms = asked.after_ms
    if after_ms is None:
        after_ms = lake.state.max_at_ms - _DAY_MS
    everything = msgspec.structs.replace(asked.scope, since=None)
    return new_failures(everything.rows(lake, ERRORS), after_ms, asked.limit)


# ── cost, workers, trouble ────────────────────────────────────────────────────────────────────────


def _cost(lake: Lake, asked: Question) -> list[Row]:
    found = costs(asked.scope.rows(lake, TASK_HOUR), asked.limit)
    return [
        {
            **_task_row(cost),
            "price": None if asked.per_hour is None else round(cost.price(asked.per_hour), 4),
        }
        for cost in found
    ]


def _workers(lake: Lake, asked: Question) -> list[Row]:
    found = worker_use(minutes(asked.scope.rows(lake, WORKER_MINUTE)), asked.limit)
    return [
        {
            **msgspec.structs.asdict(use),
            "first_at": utc(use.first_ms),
            "utilisation": use.utilisation,
            "concurrency": use.concurrency,
        }
        for use in found
    ]


def _trouble(lake: Lake, asked: Question) -> list[Row]:
    by = ["tenant", "queue", "name", "worker"]
    found = trouble(asked.scope.rows(lake, TASK_HOUR), by, asked.limit)
    return [{**_task_row(one), "share": one.share} for one in found]


def _task_row(found: msgspec.Struct) -> Row:
    row = msgspec.structs.asdict(found)
    return {"task": row.pop("name"), **row}


# ── service levels ────────────────────────────────────────────────────────────────────────────────


def find_slices(lake: Lake, scope: Scope) -> list[Slice]:
    """The hours of all targets in these days, and of the long window before them."""
    earlier = scope if scope.since is None else _day_earlier(scope)
    columns = "tenant, queue, target, objective, unix_date(day) * 24 + hour AS hour, good, total"
    rows = earlier.rows(lake, SLO).selectExpr(*columns.split(", "))
    in_order = rows.orderBy("tenant", "queue", "target", "hour")
    return [Slice(**row.asDict()) for row in in_order.collect()]


def _day_earlier(scope: Scope) -> Scope:
    assert LONG_HOURS <= 24
    first = date.fromisoformat(scope.since or "").toordinal() - 1
    return msgspec.structs.replace(scope, since=date.fromordinal(first).isoformat())


def find_burn(slices: Sequence[Slice]) -> list[Burn]:
    """The rates at the end of the latest hour that has any run or job, the highest first."""
    if not slices:
        return []
    found = burn_rates(slices, [max(one.hour for one in slices)])
    return sorted(found, key=lambda burn: -min(burn.short or 0.0, burn.long or 0.0))


def _burn(lake: Lake, asked: Question) -> list[Row]:
    found = find_burn(find_slices(lake, asked.scope))
    return [
        {
            **msgspec.structs.asdict(burn),
            "hour": utc(burn.hour * 3_600_000),
            "burn_1h": burn.short,
            "burn_6h": burn.long,
            "burning": burn.burning,
        }
        for burn in found[: asked.limit]
    ]


# ── two periods ───────────────────────────────────────────────────────────────────────────────────


def compared_hours(scope: Scope, latest_ms: int) -> tuple[int, int]:
    """The hours since the epoch to compare: from the first on, and before the second.

    By default, the day of the latest event. An hour that is not over is left out, because the other
    period has the whole of it, unless it is the only one."""
    today = latest_ms // _DAY_MS
    first = today if scope.since is None else _day_number(scope.since)
    last = today if scope.until is None else _day_number(scope.until)
    end = min((last + 1) * 24, latest_ms // 3_600_000)
    return first * 24, max(end, first * 24 + 1)


def _day_number(day: str) -> int:
    return (date.fromisoformat(day) - date(1970, 1, 1)).days


def find_standouts(lake: Lake, asked: Question) -> list[Standout]:
    """What stands out in these days, compared with the days some days earlier."""
    first, end = compared_hours(asked.scope, lake.state.max_at_ms)
    back = 24 * asked.days_back
    then = _sums(lake, asked.scope, first - back, end - back)
    return standouts(then, _sums(lake, asked.scope, first, end)) if then else []


def _sums(lake: Lake, scope: Scope, first: int, end: int) -> list[TaskSums]:
    days = (date.fromordinal(n // 24 + date(1970, 1, 1).toordinal()) for n in (first, end - 1))
    since, until = (day.isoformat() for day in days)
    rows = msgspec.structs.replace(scope, since=since, until=until).rows(lake, TASK_HOUR)
    hour = F.expr("unix_date(day) * 24 + hour")
    grouped = rows.where((hour >= first) & (hour < end)).groupBy("tenant", "queue", "name")
    sums = grouped.agg(
        F.sum("runs").alias("runs"),
        F.sum(F.expr("retried + failed + stalled")).alias("failing"),
        F.sum("run_ms").alias("run_ms"),
        F.sum("wait_ms").alias("wait_ms"),
    )
    return [TaskSums(**row.asDict()) for row in sums.collect()]


def _standouts(lake: Lake, asked: Question) -> list[Row]:
    return [_task_row(change) for change in find_standouts(lake, asked)[: asked.limit]]


# ── all of them ───────────────────────────────────────────────────────────────────────────────────

_TASK = ("tenant", "queue", "task")

VIEWS: tuple[View, ...] = (
    View(
        "dead-letters",
        "Jobs that failed for good, by cause, with the command that reruns them. Jobs that were "
        "rerun since are still counted.",
        _CAUSE,
        _dead,
    ),
    View(
        "new-failures",
        "Causes that were first seen since --after, e.g. a deploy. Default: 24 hours before the "
        "latest event.",
        _CAUSE,
        _new,
    ),
    View(
        "cost",
        "Run time per tenant and task. `lost_ms` went to runs that were retried, failed or "
        "stalled. --per-hour adds a price.",
        (*_TASK, "runs", "run_ms", "lost_ms", "share", "price"),
        _cost,
    ),
    View(
        "burn",
        "How fast each queue uses up the error budget of each target, over the last 1 and the last "
        "6 hours. A target is burning if both rates are at least 6.",
        ("tenant", "queue", "target", "objective", "hour", "burn_1h", "burn_6h", "burning"),
        _burn,
    ),
    View(
        "standouts",
        "What differs from the same hours a week before (--days-back): runs, failing runs, mean "
        "run time and wait, new and missing tasks. Small changes and small numbers are left out.",
        (*_TASK, "what", "then", "now", "factor", "worse"),
        _standouts,
    ),
    View(
        "workers",
        "Utilisation per worker. The denominator is the time from the worker's first minute with a "
        "run to its last one.",
        (
            *("worker", "first_at", "present_ms", "covered_ms", "busy_ms"),
            *("utilisation", "concurrency"),
        ),
        _workers,
    ),
    View(
        "trouble",
        "Retries, failures and stalls per task and worker.",
        (*_TASK, "worker", "runs", "retried", "failed", "stalled", "share"),
        _trouble,
    ),
)
BY_NAME: dict[str, View] = {view.name: view for view in VIEWS}


def answer(lake: Lake, name: str, asked: Question) -> list[Row]:
    """The rows of a view, with its columns in order."""
    view = BY_NAME[name]
    return [{column: row[column] for column in view.columns} for row in view.rows(lake, asked)]
