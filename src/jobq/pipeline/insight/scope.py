"""Which rows of the derived tables an answer is about."""

from __future__ import annotations

from datetime import date, timedelta

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from jobq.pipeline.lake import Lake
from jobq.pipeline.tables import Table


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    """Days (the first and the last, YYYY-MM-DD), tenant, queue and task. None means all."""

    since: str | None = None
    until: str | None = None
    tenant: str | None = None
    queue: str | None = None
    task: str | None = None

    def rows(self, lake: Lake, table: Table) -> DataFrame:
        """The rows of a table. A table without one of the columns is not narrowed by it."""
        rows = lake.read(table)
        if self.since:
            rows = rows.where(F.col("day") >= F.lit(self.since).cast("date"))
        if self.until:
            rows = rows.where(F.col("day") <= F.lit(self.until).cast("date"))
        for column, wanted in (("tenant", self.tenant), ("queue", self.queue), ("name", self.task)):
            if wanted is not None and column in table.columns:
                rows = rows.where(F.col(column) == wanted)
        return rows

    def shifted(self, days: int) -> Scope:
        """The same scope, some days earlier. Both ends must be known."""
        assert self.since is not None
        assert self.until is not None
        back = timedelta(days=days)
        return msgspec.structs.replace(
            self,
            since=(date.fromisoformat(self.since) - back).isoformat(),
            until=(date.fromisoformat(self.until) - back).isoformat(),
        )
