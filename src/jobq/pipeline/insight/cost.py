"""What tasks cost: their run time, and how much of it was lost to runs that failed."""

from __future__ import annotations

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as F


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """The run time of one task."""

    tenant: str
    queue: str
    name: str
    runs: int
    run_ms: int
    lost_ms: int  # spent in runs that were retried, failed or stalled
    share: float  # of the run time of all tasks

    def price(self, per_hour: float) -> float:
        """What the run time costs, if an hour of it costs `per_hour`."""
        return self.run_ms / 3_600_000 * per_hour


def costs(task_hours: DataFrame, limit: int) -> list[Cost]:
    """The tasks with the most run time, of rows of `task_hour`. Shares are of all tasks."""
    grouped = task_hours.groupBy("tenant", "queue", "name").agg(
        *(F.sum(name).alias(name) for name in ("runs", "run_ms", "lost_ms"))
    )
    rows = grouped.orderBy(F.desc("run_ms"), "tenant", "queue", "name").limit(limit).collect()
    if not rows:
        return []
    (everything,) = task_hours.agg(F.sum("run_ms")).collect()[0]
    return [Cost(**row.asDict(), share=row["run_ms"] / (everything or 1)) for row in rows]
