"""format("jobq"): DataFrames into jobs, and jobs and events into DataFrames.

    df.write.format("jobq").option("url", …).option("queue", "mail").option("task", "send").mode("append").save()
    spark.read.format("jobq").option("url", …).option("queue", "mail").load().where("state = 'failed'")
    spark.readStream.format("jobq").option("url", …).option("read", "events").load()

`register(spark)` first; sessions of `jq-pipeline` have it. The workers need jobq installed, and a way to the store.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pyspark
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from jobq.errors import ConfigError
from jobq.pipeline.datasource.columns import EVENTS, JOBS, LINES

_SHAPES = {"jobs": JOBS, "events": EVENTS, "lines": LINES}


class JobqSource(DataSource):
    """See the package. The option `read` is jobs (default), events, or lines (events as JSON, with an origin)."""

    @classmethod
    def name(cls) -> str:
        """What stands in format(…)."""
        return "jobq"

    def schema(self) -> StructType:
        """By what is read."""
        shape = self.options.get("read", "jobs")
        if shape not in _SHAPES:
            raise ConfigError(f'option("read", {shape!r}) is none of {", ".join(_SHAPES)}')
        return _SHAPES[shape]

    def reader(self, schema: StructType) -> Any:
        """A batch of jobs."""
        if self.options.get("read", "jobs") != "jobs":
            raise ConfigError(
                'a batch read gives jobs; for events use spark.readStream, with trigger(availableNow=True) for "all there are"'
            )
        return _part("jobs", "JobsReader")(dict(self.options))

    def streamReader(self, schema: StructType) -> Any:
        """A stream of events."""
        if self.options.get("read", "jobs") == "jobs":
            raise ConfigError('a stream reads events: add .option("read", "events")')
        return _part("event_source", "EventsReader")(dict(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        """A DataFrame as jobs."""
        if overwrite:
            raise ConfigError('jobs are added, never overwritten: use .mode("append")')
        return _part("write", "JobsWriter")(dict(self.options), schema.names)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
        """A stream as jobs."""
        return _part("write", "StreamJobsWriter")(dict(self.options), schema.names)


def _part(module: str, name: str) -> Any:
    """A class of this package, loaded when it is needed: it uses what only newer versions of Spark have."""
    try:
        return getattr(import_module(f"jobq.pipeline.datasource.{module}"), name)
    except ImportError as e:
        raise ConfigError(
            f'format("jobq") needs pyspark 4.2 or newer (4.x), and this is {pyspark.__version__}: {e}'
        ) from e


def register(spark: SparkSession) -> None:
    """Make format("jobq") known to a session."""
    spark.dataSource.register(JobqSource)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
