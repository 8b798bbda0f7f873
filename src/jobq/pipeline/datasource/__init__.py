"""format("jobq"): write DataFrames as jobs, and read jobs and events as DataFrames.

    jobs = {"url": "valkey://host:6379", "queue": "mail"}
    df.write.format("jobq").options(**jobs, task="send").mode("append").save()
    spark.read.format("jobq").options(**jobs).load().where("state = 'failed'")
    spark.readStream.format("jobq").options(**jobs, read="events").load()

Call `register(spark)` first. Sessions of `jq-pipeline` have done so. Spark's workers need jobq
installed and network access to the store.
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
    """The data source. Option `read`: jobs (default), events, or lines (events as JSON lines)."""

    @classmethod
    def name(cls) -> str:
        """The name for format(…)."""
        return "jobq"

    def schema(self) -> StructType:
        """The columns, according to the option `read`."""
        shape = self.options.get("read", "jobs")
        if shape not in _SHAPES:
            known = ", ".join(_SHAPES)
            raise ConfigError(f'unknown value in option("read", {shape!r}): use one of {known}')
        return _SHAPES[shape]

    def reader(self, schema: StructType) -> Any:
        """Read jobs, in a batch query."""
        if self.options.get("read", "jobs") != "jobs":
            raise ConfigError(
                "a batch query reads jobs. To read events, use spark.readStream; "
                "with trigger(availableNow=True) it reads what is there and stops"
            )
        return _part("jobs", "JobsReader")(dict(self.options))

    def streamReader(self, schema: StructType) -> Any:
        """Read events, in a streaming query."""
        if self.options.get("read", "jobs") == "jobs":
            raise ConfigError('a streaming query reads events: add .option("read", "events")')
        return _part("event_source", "EventsReader")(dict(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        """Write a DataFrame as jobs."""
        if overwrite:
            raise ConfigError('jobs can only be added, not overwritten: use .mode("append")')
        return _part("write", "JobsWriter")(dict(self.options), schema.names)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
        """Write a stream as jobs."""
        return _part("write", "StreamJobsWriter")(dict(self.options), schema.names)


def _part(module: str, name: str) -> Any:
    """Import a class of this package on demand: it needs a recent version of Spark."""
    try:
        return getattr(import_module(f"jobq.pipeline.datasource.{module}"), name)
    except ImportError as e:
        raise ConfigError(
            f'format("jobq") needs pyspark 4.2 or a later 4.x, not {pyspark.__version__}: {e}'
        ) from e


def register(spark: SparkSession) -> None:
    """Register format("jobq") in a Spark session."""
    spark.dataSource.register(JobqSource)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
