"""`jq-pipeline run`: a source into the lake, batch after batch, and the derived tables after it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from jobq.pipeline.jobs.derive import derive
from jobq.pipeline.jobs.ingest import ingest
from jobq.pipeline.lake import Batch, Lake, Totals
from jobq.pipeline.slo import Target
from jobq.pipeline.sources import Source

Report = Callable[[str], None]


class PipelineRun:
    """One stream. `once`: what is there now, and then it ends; otherwise a batch every `every` seconds until `stop`."""

    def __init__(
        self,
        lake: Lake,
        source: Source,
        targets: Sequence[Target],
        *,
        every: float = 10.0,
        derive_every: float = 60.0,
        report: Report = lambda _: None,
    ) -> None:
        self.lake, self.source, self.targets = lake, source, targets
        self.every, self.derive_every, self.report = every, derive_every, report
        self.brought = Totals()
        self._derived_at = time.monotonic()
        self._query: StreamingQuery | None = None
        self._lock = lake.writing("run")
        self._once = False

    def start(self, spark: SparkSession, *, once: bool) -> None:
        """Begin, where the checkpoint of this source says. LakeInUse if another command is writing to the lake."""
        self._lock.acquire()
        try:
            self.lake.reload()
            self.lake.save(
                self.lake.state
            )  # from here on it is a lake, also if no event ever comes
            self.lake.finish()
            self.lake.sweep()
            self._once = once
            self._query = self._stream(spark, once=once)
        except BaseException:
            self._lock.release()
            raise

    def _stream(self, spark: SparkSession, *, once: bool) -> StreamingQuery:
        writer = (
            self.source.stream(spark)
            .writeStream.foreachBatch(self._batch)
            .queryName(f"jobq {self.source.name}")
        )
        writer = writer.option("checkpointLocation", self.lake.checkpoint(self.source.name))
        writer = (
            writer.trigger(availableNow=True)
            if once
            else writer.trigger(processingTime=f"{self.every} seconds")
        )
        return writer.start()

    def wait(self) -> None:
        """Until the stream ends; then derive what is left. What made it fail is raised."""
        assert self._query is not None
        try:
            self._query.awaitTermination()
            self._derive()
        finally:
            self._lock.release()

    def stop(self) -> None:
        """End after the present batch's step. What is under way is repeated by the next run."""
        if self._query is not None:
            self._query.stop()

    def _batch(self, rows: DataFrame, number: int) -> None:
        began = time.monotonic()
        self._lock.check()
        context: Any = rows.sparkSession.sparkContext
        batch = Batch(run=str(context.getLocalProperty("sql.streaming.queryId"))[:8], number=number)
        totals = ingest(self.lake, rows, batch)
        self.brought = self.brought + totals
        self.report(f"batch {batch.name}: {describe(totals)} in {time.monotonic() - began:.1f} s")
        # A run that ends by itself derives once, at its end: hours that many batches touch would be made again for each.
        if not self._once and time.monotonic() - self._derived_at >= self.derive_every:
            self._derive()

    def _derive(self) -> None:
        began = time.monotonic()
        hours = derive(self.lake, self.targets)
        self._derived_at = time.monotonic()
        if hours:
            self.report(
                f"derived tables up to date: {len(hours)} hours in {self._derived_at - began:.1f} s"
            )


def describe(totals: Totals) -> str:
    """In words, leaving out what is zero."""
    more = [
        f"{n:,} {what}"
        for n, what in (
            (totals.duplicates, "copies"),
            (totals.late, "late"),
            (totals.quarantined, "quarantined"),
        )
        if n
    ]
    return f"{totals.events:,} new events" + (f" ({', '.join(more)})" if more else "")
