"""Stream a source into the lake and keep the derived tables up to date (`jq-pipeline run`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from jobq.pipeline.fs import is_connect
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
        self._before = Totals()

    def start(self, spark: SparkSession, *, once: bool) -> None:
        """Start at the checkpoint of this source.

        With `once`, the stream ends when it has read what is there now. Otherwise it runs until
        `stop`. Raises LakeInUse if another command is writing to the lake."""
        self._lock.acquire()
        try:
            self.lake.check_new()
            self.lake.begin()
            self.lake.save(self.lake.state)  # makes the folder a lake, even if no event arrives
            if self.metrics is not None:
                self.metrics.started(self.lake)
            self._once, self._before = once, self.lake.state.totals
            self._query = self._stream(spark, once=once)
        except BaseException:
            self._lock.release()
            raise

    def _stream(self, spark: SparkSession, *, once: bool) -> StreamingQuery:
        batch: Callable[[DataFrame, int], None] = self._batch
        if is_connect(spark):
            every = None if once else self.derive_every
            batch = RemoteBatch(
                self.lake.root, self.source.name, self._lock.owner, self.targets, every
            )
        writer = (
            self.source.stream(spark)
            .writeStream.foreachBatch(batch)
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
            if is_connect(self.lake.spark):  # the batches were added by the server
                self.lake.reload()
                self.brought = self.lake.state.totals - self._before
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
        batch = Batch(run=run_name(self.lake, self.source.name), number=number)
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


def run_name(lake: Lake, source: str) -> str:
    """The name of a checkpoint's lifetime: the id that Spark has written into it."""
    text = lake.files.read(f"{lake.checkpoint(source)}/metadata")
    return str(msgspec.json.decode(text or '{"id": "unknown"}')["id"])[:8]


class RemoteBatch:
    """Adds a batch to the lake in the process that a Spark Connect server starts for it.

    The client sends this object to the server once per run, so it holds plain values only. The
    server's Python needs jobq, and both reach the lake under the same path."""

    def __init__(
        self,
        root: str,
        source: str,
        owner: str,
        targets: Sequence[Target],
        derive_every: float | None,
    ) -> None:
        self.root, self.source, self.owner = root, source, owner
        self.targets, self.derive_every = tuple(targets), derive_every
        self._derived_at = time.monotonic()

    def __call__(self, rows: DataFrame, number: int) -> None:
        """Add a batch."""
        lake = Lake(rows.sparkSession, self.root)
        lock = lake.writing("run")
        lock.owner = self.owner
        lock.check()
        ingest(lake, rows, Batch(run=run_name(lake, self.source), number=number))
        if (
            self.derive_every is not None
            and time.monotonic() - self._derived_at >= self.derive_every
        ):
            derive(lake, self.targets)
            self._derived_at = time.monotonic()


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
