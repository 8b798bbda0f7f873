"""The numbers of the report. Spark aggregates, so that only a few hundred of them are collected."""

from __future__ import annotations

import math
from typing import Any

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from jobq.errors import ConfigError
from jobq.pipeline.lake import Lake
from jobq.pipeline.tables import (
    ATTEMPTS,
    ERRORS,
    QUEUE_MINUTE,
    SLO,
    TENANT_DAY,
    WORKER_MINUTE,
    Table,
)

_POINTS = 160  # maximum points of a line: more would not be visible on the page
_STEPS = (1, 5, 10, 15, 30, 60, 120, 180, 360, 720, 1440)  # minutes per point
_TOP = 12  # maximum rows of a table

Row = dict[str, Any]


class ReportData(msgspec.Struct, frozen=True, kw_only=True):
    """Everything on the page. Lists in `lines` have a value, or None, for each of `times_ms`."""

    times_ms: list[int]
    step_minutes: int
    lines: dict[str, list[float | None]]
    totals: Row
    backlog: dict[str, list[float | None]]  # waiting jobs: the largest queues, and all together
    errors: list[Row]
    reasons: list[Row]
    tasks: list[Row]
    slo: list[Row]
    workers: list[Row]
    tenants: list[Row]
    lake: Row
    audit: Row | None = None


class _Scope:
    """Selects rows by days and tenant."""

    def __init__(
        self, lake: Lake, since: str | None, until: str | None, tenant: str | None
    ) -> None:
        self.lake, self.since, self.until, self.tenant = lake, since, until, tenant

    def read(self, table: Table) -> DataFrame:
        """Read the selected rows of a table."""
        rows = self.lake.read(table)
        if self.since:
            rows = rows.where(F.col("day") >= self.since)
        if self.until:
            rows = rows.where(F.col("day") <= self.until)
        return (
            rows.where(F.col("tenant") == self.tenant)
            if self.tenant and "tenant" in rows.columns
            else rows
        )


def gather(
    lake: Lake, *, since: str | None = None, until: str | None = None, tenant: str | None = None
) -> ReportData:
    """Query the lake. Raises ConfigError if there are no events in these days."""
    scope = _Scope(lake, since, until, tenant)
    minutes = scope.read(QUEUE_MINUTE)
    span = minutes.select(F.min(F.unix_millis("minute")), F.max(F.unix_millis("minute"))).first()
    if span is None or span[0] is None:
        raise ConfigError(
            f"the lake {lake.root} has no events in this period: "
            "run the pipeline first, or choose other days"
        )
    first, last = int(span[0]), int(span[1])
    step = next(
        (s for s in _STEPS if (last - first) / 60_000 / s <= _POINTS),
        math.ceil((last - first) / 60_000 / _POINTS),
    )
    start = first // (step * 60_000) * step * 60_000
    times = list(range(start, last + 1, step * 60_000))
    runs = scope.read(ATTEMPTS)
    return ReportData(
        times_ms=times,
        step_minutes=step,
        lines={
            **_rates(minutes, times, step),
            **_percentiles(runs, times, step),
            **_utilisation(scope, times, step),
        },
        totals=_totals(minutes, runs),
        backlog=_backlog(minutes, times, step),
        errors=_errors(scope),
        reasons=_rows(
            scope.read(ERRORS)
            .groupBy("reason")
            .agg(F.sum("count").alias("count"))
            .orderBy(F.desc("count")),
            _TOP,
        ),
        tasks=_tasks(runs),
        slo=_slo(scope),
        workers=_workers(scope),
        tenants=_tenants(scope),
        lake={**msgspec.to_builtins(lake.state.totals), "tenant": tenant},
        audit=_audit(lake),
    )


def _rows(frame: DataFrame, limit: int | None = None) -> list[Row]:
    return [row.asDict() for row in (frame if limit is None else frame.limit(limit)).collect()]


def _point(at: str, step: int) -> Column:
    """The point of the lines that a time belongs to, in ms."""
    return F.expr(f"unix_millis({at}) div {step * 60_000} * {step * 60_000}").alias("t")


def _lines(
    frame: DataFrame, times: list[int], names: list[str], empty: float | None
) -> dict[str, list[float | None]]:
    found = {row["t"]: row for row in frame.collect()}
    return {name: [found[t][name] if t in found else empty for t in times] for name in names}


def _rates(minutes: DataFrame, times: list[int], step: int) -> dict[str, list[float | None]]:
    names = ["accepted", "completed", "failed", "retried", "stalled"]
    sums = minutes.groupBy(_point("minute", step)).agg(
        *((F.sum(name) / step).alias(name) for name in names)
    )
    return _lines(sums, times, names, 0.0)


def _percentiles(runs: DataFrame, times: list[int], step: int) -> dict[str, list[float | None]]:
    quantiles = F.array(F.lit(0.5), F.lit(0.95), F.lit(0.99))
    both = runs.groupBy(_point("ended_at", step)).agg(
        F.percentile_approx("wait_ms", quantiles, 500).alias("wait"),
        F.percentile_approx("run_ms", quantiles, 500).alias("run"),
    )
    names = {
        f"{what}_{q}": F.col(what)[n]
        for what in ("wait", "run")
        for n, q in enumerate(("p50", "p95", "p99"))
    }
    return _lines(
        both.select("t", *(column.alias(name) for name, column in names.items())),
        times,
        list(names),
        None,
    )


def _utilisation(scope: _Scope, times: list[int], step: int) -> dict[str, list[float | None]]:
    """The share of time in which workers were busy, and the number of parallel runs, per point."""
    rows = scope.read(WORKER_MINUTE).groupBy(_point("minute", step))
    seen = F.count_distinct("worker")
    sums = rows.agg(
        (F.sum("covered_ms") / (seen * step * 60_000)).alias("utilisation"),
        (F.sum("busy_ms") / (step * 60_000)).alias("running"),
    )
    return _lines(sums, times, ["utilisation", "running"], 0.0)


def _backlog(minutes: DataFrame, times: list[int], step: int) -> dict[str, list[float | None]]:
    """Waiting jobs at the end of each point, of the five largest queues and in total.

    A queue keeps its level while nothing happens in it."""
    name = F.concat_ws("/", "tenant", "queue").alias("name")
    levels = (
        minutes.groupBy(name, _point("minute", step))
        .agg(F.max_by("waiting", "minute").alias("level"))
        .collect()
    )
    known: dict[str, dict[int, int]] = {}
    for row in levels:
        known.setdefault(row["name"], {})[row["t"]] = row["level"]
    lines = {queue: _carried(points, times) for queue, points in known.items()}
    largest = sorted(lines, key=lambda queue: -max(lines[queue]))[:5]
    everything: list[float | None] = [
        sum(line[n] for line in lines.values()) for n in range(len(times))
    ]
    return {
        "all queues": everything,
        **{queue: list(lines[queue]) for queue in largest if len(lines) > 1},
    }


def _carried(points: dict[int, int], times: list[int]) -> list[float]:
    level, line = 0.0, []
    for t in times:
        level = points.get(t, level)
        line.append(float(level))
    return line


def _totals(minutes: DataFrame, runs: DataFrame) -> Row:
    names = ["accepted", "completed", "failed", "cancelled", "retried", "stalled", "rerun"]
    sums = minutes.agg(*(F.sum(name).alias(name) for name in names)).first()
    quantiles = runs.agg(
        *(
            F.percentile_approx(f"{what}_ms", 0.95, 1000).alias(f"{what}_p95")
            for what in ("wait", "run")
        )
    ).first()
    assert sums is not None
    assert quantiles is not None
    return {**sums.asDict(), **quantiles.asDict()}


def _errors(scope: _Scope) -> list[Row]:
    grouped = scope.read(ERRORS).groupBy("tenant", "queue", "name", "reason", "fingerprint")
    found = grouped.agg(
        F.sum("count").alias("count"),
        F.sum("final").alias("final"),
        F.max_by(F.struct("example", "example_job"), "last_at").alias("e"),
    )
    return _rows(
        found.orderBy(F.desc("count")).select("*", "e.example", "e.example_job").drop("e"), _TOP
    )


def _tasks(runs: DataFrame) -> list[Row]:
    quantiles = F.percentile_approx("run_ms", F.array(F.lit(0.5), F.lit(0.95), F.lit(0.99)), 500)
    grouped = runs.groupBy("tenant", "queue", "name").agg(
        F.count(F.lit(1)).alias("runs"),
        F.sum("run_ms").alias("total_ms"),
        F.max("run_ms").alias("max"),
        quantiles.alias("q"),
    )
    shown = grouped.select(
        "tenant",
        "queue",
        "name",
        "runs",
        "total_ms",
        "max",
        *(F.col("q")[n].alias(q) for n, q in enumerate(("p50", "p95", "p99"))),
    )
    return _rows(shown.orderBy(F.desc("p95")), _TOP)


def _slo(scope: _Scope) -> list[Row]:
    grouped = (
        scope.read(SLO)
        .groupBy("tenant", "queue", "target", "objective")
        .agg(F.sum("good").alias("good"), F.sum("total").alias("total"))
    )
    shown = grouped.withColumn("attainment", F.col("good") / F.col("total")).withColumn(
        "met", F.col("attainment") >= F.col("objective")
    )
    return _rows(shown.orderBy("met", F.col("attainment") - F.col("objective")), 3 * _TOP)


def _workers(scope: _Scope) -> list[Row]:
    grouped = (
        scope.read(WORKER_MINUTE)
        .groupBy("worker")
        .agg(
            F.sum("runs").alias("runs"),
            F.avg("utilisation").alias("utilisation"),
            F.avg("concurrency").alias("concurrency"),
        )
    )
    return _rows(grouped.orderBy(F.desc("utilisation")), _TOP)


def _tenants(scope: _Scope) -> list[Row]:
    names = ["accepted", "completed", "failed", "run_ms"]
    grouped = (
        scope.read(TENANT_DAY).groupBy("tenant").agg(*(F.sum(name).alias(name) for name in names))
    )
    return _rows(grouped.orderBy(F.desc("accepted")), _TOP)


def _audit(lake: Lake) -> Row | None:
    text = lake.files.read(f"{lake.root}/_jobq/audit.json")
    return None if text is None else msgspec.json.decode(text)
