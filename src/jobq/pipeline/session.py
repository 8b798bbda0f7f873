"""The Spark session of a command: `local[*]` unless told otherwise, UTC, and only the jars that are needed."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Literal

from jobq.errors import ConfigError

if TYPE_CHECKING:  # jq-pipeline starts without Spark, so that it can say what to install
    from pyspark.sql import SparkSession

Format = Literal["parquet", "delta"]

_DELTA = "4.4.0"

_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.compression.codec": "zstd",
    # Spark's default (INT96) costs more to write and to read, and has no minimum and maximum that a reader could skip by.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # A batch that spans many hours writes them side by side instead of sorting all its rows by hour first.
    "spark.sql.maxConcurrentOutputFileWriters": "64",
    "spark.sql.sources.partitionOverwriteMode": "dynamic",
    # Percentiles per queue and minute are thousands of groups; past this number Spark sorts all rows instead of hashing them.
    "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "100000",
    # What is kept for several tables is small: few partitions, and so few files of the tables made from it.
    "spark.sql.optimizer.canChangeCachedPlanOutputPartitioning": "true",
    # Beginnings of runs are joined to a few in a hundred ends: cheaper sent around than shuffled, up to this size.
    "spark.sql.autoBroadcastJoinThreshold": "67108864",
    # Code that Spark has made for a query is kept for the next one like it; 100, the default, is too few for a run's plans.
    # (1M events, the second time in a session: 56 → 39 CPU s, one run each on a busy machine.)
    "spark.sql.codegen.cache.maxEntries": "2000",
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    "spark.hadoop.parquet.enable.summary-metadata": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.ui.showConsoleProgress": "false",
    "spark.ui.enabled": "false",
}

# For a driver that is all of Spark and lives for minutes. A third of such a run's CPU was the JVM's best compiler, on code
# that is soon over: it sets in about four times as late. (Together with the collector, 1M events: 39 → 32 CPU s, one run each.)
_LOCAL_JVM = " ".join(
    (
        "-XX:+UseParallelGC",
        "-XX:Tier4InvocationThreshold=20000",
        "-XX:Tier4MinInvocationThreshold=2400",
        "-XX:Tier4CompileThreshold=60000",
        "-XX:Tier4BackEdgeThreshold=160000",
    )
)


def packages(*, kafka: bool = False, format: Format = "parquet") -> list[str]:
    """What Spark must fetch, for spark.jars.packages."""
    import pyspark

    version = pyspark.__version__
    wanted = [f"org.apache.spark:spark-sql-kafka-0-10_2.13:{version}"] if kafka else []
    if format == "delta":
        wanted.append(f"io.delta:delta-spark_{'.'.join(version.split('.')[:2])}_2.13:{_DELTA}")
    return wanted


def open_session(
    name: str,
    *,
    master: str | None = None,
    kafka: bool = False,
    format: Format = "parquet",
    conf: Mapping[str, str] | None = None,
) -> SparkSession:
    """A session for one command.

    `master` None: what spark-submit or the environment says, else `local[*]`. Connector jars come by spark.jars.packages,
    unless `JQ_SPARK_JARS` (or spark.jars in `conf`) names them: then nothing is downloaded.
    """
    from pyspark.sql import SparkSession

    settings = {**_SETTINGS, **_format_settings(format), **_jars(kafka, format), **(conf or {})}
    builder = SparkSession.builder.appName(name)
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ  # spark-submit has chosen the master
    if master or not submitted:
        master = master or os.environ.get("SPARK_MASTER", "local[*]")
        builder = builder.master(master)
        if master.startswith("local"):
            # Python workers of this machine use this Python, which has jobq; on a cluster that is PYSPARK_PYTHON's to say.
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
            builder = builder.config(
                "spark.sql.shuffle.partitions", "16"
            )  # 200, the default, is for clusters
            settings = {"spark.driver.extraJavaOptions": _LOCAL_JVM, **settings}
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel(os.environ.get("JQ_SPARK_LOG", "ERROR"))
    return session


def _format_settings(format: Format) -> dict[str, str]:
    if format == "parquet":
        return {}
    return {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    }


def _jars(kafka: bool, format: Format) -> dict[str, str]:
    given = os.environ.get("JQ_SPARK_JARS")
    if given:
        return {"spark.jars": given}
    wanted = packages(kafka=kafka, format=format)
    return {"spark.jars.packages": ",".join(wanted)} if wanted else {}


def require(module: str, extra: str) -> None:
    """ConfigError that says what to install, if a module of an extra is missing."""
    try:
        import_module(module)
    except ImportError as e:
        raise ConfigError(f"this needs {module}: pip install 'jobq[{extra}]'") from e
