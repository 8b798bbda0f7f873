"""Utilisation per worker, and retries and stalls per task and worker."""

from __future__ import annotations

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

MINUTE_MS = 60_000
"""Milliseconds of a minute: the slices of the table `worker_minute`."""


class WorkerUse(msgspec.Struct, frozen=True, kw_only=True):
    """How busy a worker was, from its first minute with a run to its last one, idle ones included.

    That time is the denominator everywhere: here, and in the chart over all workers."""

    worker: str
    first_ms: int
    present_ms: int
    busy_ms: int
    covered_ms: int

    @property
    def utilisation(self) -> float:
        """The share of its time in which the worker ran at least one job."""
        return self.covered_ms / self.present_ms

    @property
    def concurrency(self) -> float:
        """The average number of parallel runs over the same time."""
        return self.busy_ms / self.present_ms


class Trouble(msgspec.Struct, frozen=True, kw_only=True):
    """The runs of one task on one worker, or of all tasks or workers if the field is None."""

    tenant: str | None = None
    queue: str | None = None
    name: str | None = None
    worker: str | None = None
    runs: int
    retried: int
    failed: int
    stalled: int

    @property
    def share(self) -> float:
        """The share of the runs that did not go well."""
        return (self.retried + self.failed + self.stalled) / self.runs


def minutes(worker_minutes: DataFrame) -> DataFrame:
    """Rows of `worker_minute` as slices, the form that `worker_use` and the report take."""
    return worker_minutes.select(
        "worker", F.unix_millis("minute").alias("at_ms"), "busy_ms", "covered_ms"
    )


def worker_use(slices: DataFrame, limit: int, slice_ms: int = MINUTE_MS) -> list[WorkerUse]:
    """The workers with the most busy time, of the slices in which they ran jobs."""
    grouped = slices.groupBy("worker").agg(
        F.min("at_ms").alias("first_ms"),
        (F.max("at_ms") - F.min("at_ms") + slice_ms).alias("present_ms"),
        F.sum("busy_ms").alias("busy_ms"),
        F.sum("covered_ms").alias("covered_ms"),
    )
    rows = grouped.orderBy(F.desc("covered_ms"), "worker").limit(limit).collect()
    return [WorkerUse(**row.asDict()) for row in rows]


def trouble(task_hours: DataFrame, by: list[str], limit: int) -> list[Trouble]:
    """Retries, failures and stalls of rows of `task_hour`, per task, per worker, or per both.

    `by` are the columns of the groups. Only groups with trouble are returned, the worst first."""
    counts = ["runs", "retried", "failed", "stalled"]
    grouped = task_hours.groupBy(*by).agg(*(F.sum(name).alias(name) for name in counts))
    bad = F.col("retried") + F.col("failed") + F.col("stalled")
    rows = grouped.where(bad > 0).orderBy(F.desc(bad), *by).limit(limit).collect()
    return [Trouble(**row.asDict()) for row in rows]
