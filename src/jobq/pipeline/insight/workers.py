"""Utilisation per worker, and retries and stalls per task and worker."""

from __future__ import annotations

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

_MINUTE = 60_000  # in milliseconds


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


def worker_use(worker_minutes: DataFrame, limit: int) -> list[WorkerUse]:
    """The workers with the most busy time, of rows of `worker_minute`."""
    minute = F.unix_millis("minute")
    grouped = worker_minutes.groupBy("worker").agg(
        F.min(minute).alias("first_ms"),
        (F.max(minute) - F.min(minute) + _MINUTE).alias("present_ms"),
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
