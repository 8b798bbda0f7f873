"""format("jobq"): DataFrames into jobs, and jobs and events into DataFrames.

    df.write.format("jobq").option("url", …).option("queue", "mail").option("task", "send").mode("append").save()
    spark.read.format("jobq").option("url", …).option("queue", "mail").load().where("state = 'failed'")
    spark.readStream.format("jobq").option("url", …).option("read", "events").load()

`register(spark)` first; sessions of `jq-pipeline` have it. The workers need jobq installed, and a way to the store.
"""

from __future__ import annotations

from typing import Any

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
        from jobq.pipeline.datasource.jobs import JobsReader

        if self.options.get("read", "jobs") != "jobs":
            raise ConfigError(
                'a batch read gives jobs; for events use spark.readStream, with trigger(availableNow=True) for "all there are"'
            )
        return JobsReader(dict(self.options))

    def streamReader(self, schema: StructType) -> Any:
        """A stream of events."""
        from jobq.pipeline.datasource.events import EventsReader

        if self.options.get("read", "jobs") == "jobs":
            raise ConfigError('a stream reads events: add .option("read", "events")')
        return EventsReader(dict(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        """A DataFrame as jobs."""
        from jobq.pipeline.datasource.write import JobsWriter

        if overwrite:
            raise ConfigError('jobs are added, never overwritten: use .mode("append")')
        return JobsWriter(dict(self.options), schema.names)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
        """A stream as jobs."""
        from jobq.pipeline.datasource.write import StreamJobsWriter

        return StreamJobsWriter(dict(self.options), schema.names)


def register(spark: SparkSession) -> None:
    """Make format("jobq") known to a session."""
    spark.dataSource.register(JobqSource)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
