"""The Spark session of a command: settings, connector jars, and the master (default `local[*]`)."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Literal, get_args

from jobq.errors import ConfigError

if TYPE_CHECKING:  # jq-pipeline starts without Spark, so that it can say what to install
    from pyspark.sql import SparkSession

Format = Literal["parquet", "delta", "iceberg"]
FORMATS: tuple[Format, ...] = get_args(Format)

_DELTA = "4.4.0"  # version of the Delta package
_ICEBERG = "1.11.0"  # version of the Iceberg runtime
# Versions of Spark (major.minor) that have a connector in the version above.
_SPARKS = {
    "kafka": ("4.0", "4.1", "4.2"),
    "delta": ("4.2",),
    "iceberg": ("4.0", "4.1"),
}

_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.compression.codec": "zstd",
    # Spark's default, INT96, is slower, and has no minimum and maximum that let readers skip data.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # A batch with many hours writes them in parallel instead of sorting all its rows by hour first.
    "spark.sql.maxConcurrentOutputFileWriters": "64",
    "spark.sql.sources.partitionOverwriteMode": "dynamic",
    # Above this number of groups Spark sorts all rows instead of hashing them. Percentiles per
    # queue and minute have thousands of groups.
    "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "100000",
    # Cached data is small: with few partitions, the tables derived from it have few files.
    "spark.sql.optimizer.canChangeCachedPlanOutputPartitioning": "true",
    # Starts of runs are joined to a few percent of the ends. Up to this size (64 MB), a broadcast
    # is cheaper than a shuffle.
    "spark.sql.autoBroadcastJoinThreshold": "67108864",
    # Entries in the cache of generated code. The default, 100, is too few for the plans of a run.
    # (1M events, second run in a session: 56 → 39 CPU s, one run each on a busy machine.)
    "spark.sql.codegen.cache.maxEntries": "2000",
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    "spark.hadoop.parquet.enable.summary-metadata": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.ui.showConsoleProgress": "false",
    "spark.ui.enabled": "false",
}

# JVM options of a local session, which lives for minutes. The JVM's optimizing compiler took a
# third of the CPU time for code that is soon finished, so it starts about four times as late.
# (1M events, together with the garbage collector: 39 → 32 CPU s, one run each.)
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
    """The Maven packages that Spark needs, for spark.jars.packages.

    Raises ConfigError if there is none for the installed version of Spark."""
    import pyspark

    version = pyspark.__version__
    minor = ".".join(version.split(".")[:2])
    for need in (["kafka"] if kafka else []) + ([] if format == "parquet" else [format]):
        if minor not in _SPARKS[need]:
            raise ConfigError(
                f"there is no {need} connector for pyspark {version}: "
                f"pip install 'pyspark=={_SPARKS[need][-1]}.*', or list the jars of a connector "
                "that you have in JQ_SPARK_JARS"
            )
    wanted = [f"org.apache.spark:spark-sql-kafka-0-10_2.13:{version}"] if kafka else []
    if format == "delta":
        wanted.append(f"io.delta:delta-spark_{minor}_2.13:{_DELTA}")
    if format == "iceberg":
        wanted.append(f"org.apache.iceberg:iceberg-spark-runtime-{minor}_2.13:{_ICEBERG}")
    return wanted


def open_session(
    name: str,
    *,
    master: str | None = None,
    kafka: bool = False,
    format: Format = "parquet",
    conf: Mapping[str, str] | None = None,
) -> SparkSession:
    """Start the Spark session of a command.

    Without `master`, the session uses the master of spark-submit or SPARK_MASTER, otherwise
    `local[*]`. A master `sc://HOST:PORT`, or SPARK_REMOTE, is a Spark Connect server. Spark
    downloads connector jars, unless JQ_SPARK_JARS (or spark.jars in `conf`) lists them.
    """
    from pyspark.sql import SparkSession

    if (master or os.environ.get("SPARK_REMOTE", "")).startswith("sc://"):
        return _connect(master or os.environ["SPARK_REMOTE"], conf or {})
    settings = {**_SETTINGS, **_format_settings(format), **_jars(kafka, format), **(conf or {})}
    builder = SparkSession.builder.appName(name)
    submitted = (
        "PYSPARK_GATEWAY_PORT" in os.environ
    )  # set by spark-submit, which has chosen the master
    if master or not submitted:
        master = master or os.environ.get("SPARK_MASTER", "local[*]")
        builder = builder.master(master)
        if master.startswith("local"):
            # Local Python workers use this interpreter, which has jobq installed. On a cluster,
            # PYSPARK_PYTHON decides.
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
            # The default, 200, is meant for clusters.
            builder = builder.config("spark.sql.shuffle.partitions", "16")
            settings = {"spark.driver.extraJavaOptions": _LOCAL_JVM, **settings}
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel(os.environ.get("JQ_SPARK_LOG", "ERROR"))
    return session


def _connect(url: str, conf: Mapping[str, str]) -> SparkSession:
    """A session of Spark Connect. The server has its jars and its static settings already."""
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    require("grpc_status", "connect")
    try:
        session = SparkSession.builder.remote(url).getOrCreate()
        session.conf.set("spark.sql.session.timeZone", "UTC")
    except PySparkException as e:
        raise ConfigError(f"no Spark Connect server at {url}: {e}") from e
    for key, value in _SETTINGS.items():
        if key.startswith("spark.sql."):
            with suppress(PySparkException):  # a static setting, which only the server can change
                session.conf.set(key, value)
    for key, value in conf.items():
        session.conf.set(key, value)
    return session


def _format_settings(format: Format) -> dict[str, str]:
    if format == "parquet":
        return {}
    if format == "iceberg":
        return {
            "spark.sql.extensions": "org.apache.iceberg.spark.extensions."
            "IcebergSparkSessionExtensions",
        }
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
    """Raise ConfigError, with the command to install it, if a module of an extra is missing."""
    try:
        import_module(module)
    except ImportError as e:
        raise ConfigError(f"this needs {module}: pip install 'jobq[{extra}]'") from e
