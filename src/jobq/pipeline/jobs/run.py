"""Stream a source into the lake and keep the derived tables up to date (`jq-pipeline run`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from jobq.pipeline.jobs.derive import derive
from jobq.pipeline.jobs.ingest import ingest
from jobq.pipeline.lake import Batch, Lake, Totals
from jobq.pipeline.slo import Target
from jobq.pipeline.sources import Source

if TYPE_CHECKING:  # metrics need prometheus_client, which a run without them does not
    from jobq.pipeline.metrics import RunMetrics

Report = Callable[[str], None]


class PipelineRun:
    """One stream from a source to the lake.

    `every` and `derive_every` are the intervals, in seconds, between batches and between updates of
    the derived tables. `report` is called with lines about the progress, and `metrics` gets
    its numbers."""

    def __init__(
        self,
        lake: Lake,
        source: Source,
        targets: Sequence[Target],
        *,
        every: float = 10.0,
        derive_every: float = 60.0,
        report: Report = lambda _: None,
        metrics: RunMetrics | None = None,
    ) -> None:
        self.lake, self.source, self.targets = lake, source, targets
        self.every, self.derive_every, self.report = every, derive_every, report
        self.metrics = metrics
        self.brought = Totals()
        self._derived_at = time.monotonic()
        self._query: StreamingQuery | None = None
        self._lock = lake.writing("run")
        self._once = False

    def start(self, spark: SparkSession, *, once: bool) -> None:
        """Start at the checkpoint of this source.

        With `once`, the stream ends when it has read what is there now. Otherwise it runs until
        `stop`. Raises LakeInUse if another command is writing to the lake."""
        self._lock.acquire()
        try:
            self.lake.reload()
            self.lake.save(self.lake.state)  # makes the folder a lake, even if no event arrives
            self.lake.finish()
            self.lake.sweep()
            if self.metrics is not None:
                self.metrics.started(self.lake)
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
        """Wait for the end of the stream and update the derived tables. Raises its error."""
        assert self._query is not None
        try:
            self._query.awaitTermination()
            self._derive()
        finally:
            self._lock.release()

    @property
    def alive(self) -> bool:
        """Whether the stream is running. True before it starts, too."""
        return self._query is None or self._query.isActive

    def stop(self) -> None:
        """Stop the stream. The next run repeats an unfinished batch."""
        if self._query is not None:
            self._query.stop()

    def _batch(self, rows: DataFrame, number: int) -> None:
        began = time.monotonic()
        self._lock.check()
        context: Any = rows.sparkSession.sparkContext
        batch = Batch(run=str(context.getLocalProperty("sql.streaming.queryId"))[:8], number=number)
        totals = ingest(self.lake, rows, batch)
        self.brought = self.brought + totals
        seconds = time.monotonic() - began
        self.report(f"batch {batch.name}: {describe(totals)} in {seconds:.1f} s")
        if self.metrics is not None:
            self.metrics.batch(self.lake, totals, seconds)
        # With `once`, derive only at the end: many batches touch the same hours.
        if not self._once and time.monotonic() - self._derived_at >= self.derive_every:
            self._derive()

    def _derive(self) -> None:
        began = time.monotonic()
        hours = derive(self.lake, self.targets)
        self._derived_at = time.monotonic()
        if hours:
            seconds = self._derived_at - began
            self.report(f"updated derived tables: {len(hours)} hours in {seconds:.1f} s")
            if self.metrics is not None:
                self.metrics.derived(self.lake, seconds)


def describe(totals: Totals) -> str:
    """The counts as text, without those that are zero."""
    more = [
        f"{n:,} {what}"
        for n, what in (
            (totals.duplicates, "duplicates"),
            (totals.late, "late"),
            (totals.quarantined, "quarantined"),
        )
        if n
    ]
    return f"{totals.events:,} new events" + (f" ({', '.join(more)})" if more else "")
