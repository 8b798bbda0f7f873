"""Enqueue the rows of any DataFrame as jobs (`jq-pipeline load`)."""

from __future__ import annotations

import asyncio
import json
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from jobq import Queue
from jobq.pipeline.datasource import register
from jobq.pipeline.fs import is_connect


def check_store(url: str, queue: str, tenant: str | None = None) -> None:
    """Check the store and the queue before any work. Raises StoreUnavailable or ConfigError."""

    async def go() -> None:
        async with Queue(queue, url, tenant=tenant) as opened:
            await opened.counts()

    asyncio.run(go())


def load(
    spark: SparkSession,
    rows: DataFrame,
    options: Mapping[str, str],
    *,
    report: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Write the rows with format("jobq").

    Returns the numbers `accepted`, `duplicates` and `rejected`, and `examples` of rejected rows."""
    register(spark)
    with tempfile.TemporaryDirectory() as folder, _progress(spark, report):
        summary = Path(folder, "summary.json")
        rows.write.format("jobq").options(**options, report=str(summary)).mode("append").save()
        found: dict[str, Any] = json.loads(summary.read_text())
    return found


@contextmanager
def _progress(
    spark: SparkSession, report: Callable[[str], None], every: float = 5.0
) -> Iterator[None]:
    """Report every few seconds how many of Spark's tasks are done.

    A session of Spark Connect shows its progress itself."""
    if is_connect(spark):
        yield
        return
    tracker, done = spark.sparkContext.statusTracker(), threading.Event()

    def watch() -> None:
        while not done.wait(every):
            for stage in tracker.getActiveStageIds():
                info = tracker.getStageInfo(stage)
                if info is not None:
                    report(
                        f"{info.numCompletedTasks} of {info.numTasks} tasks done, "
                        f"{info.numActiveTasks} running"
                    )

    thread = threading.Thread(target=watch, name="jobq-load-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
