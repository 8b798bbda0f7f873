"""Where events come from. One address, one reader: every source becomes a stream of WIRE rows with an `origin`.

kafka://HOST:PORT[,HOST:PORT…]/TOPIC     through Spark's own connector
files:///FOLDER  or a plain path         JSON lines, as `jq-relay` writes them (also hdfs://, s3a://, …)
sqlite:///…, valkey://…, grpc://…        the event log of a store, through format("jobq")
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from typing import Protocol
from urllib.parse import parse_qsl, urlsplit

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from jobq.client.log_reader import LogReader
from jobq.core.kafka import sasl
from jobq.core.redact import redacted_url
from jobq.errors import ConfigError
from jobq.pipeline.failures import as_config_error
from jobq.pipeline.transforms.parse import CORRUPT, WIRE, from_json_lines

STORES = (
    "memory",
    "sqlite",
    "valkey",
    "valkeys",
    "redis",
    "rediss",
    "valkey+sentinel",
    "valkey+cluster",
    "postgresql",
    "postgres",
    "grpc",
    "grpcs",
)
_FILE_SCHEMES = ("file", "hdfs", "s3a", "s3", "gs", "abfss", "abfs", "dbfs")


class Source(Protocol):
    """A place to read events from."""

    name: str
    kafka: bool  # needs Spark's Kafka connector
    store: bool  # is a store: the lake can be compared with it

    def stream(self, spark: SparkSession) -> DataFrame:
        """Everything from the beginning, and then what comes: WIRE rows with `origin`."""
        ...


def open_source(
    address: str, *, max_events: int | None = None, max_files: int | None = None
) -> Source:
    """The source at an address. `max_events`, `max_files`: the most to take in one batch, where the source can tell."""
    url = urlsplit(address)
    if url.scheme == "kafka":
        return KafkaSource(address, max_events)
    if url.scheme in ("", "files", *_FILE_SCHEMES):
        return FileSource(url.path if url.scheme == "files" else address, max_files)
    if url.scheme in STORES:
        return StoreSource(address, max_events)
    raise ConfigError(
        f"no source for {redacted_url(address)!r}: kafka://host:9092/topic, a folder, or the URL of a store"
    )


def _name(kind: str, address: str) -> str:
    """What the checkpoint of a source is called: the same for the same address."""
    return f"{kind}-{hashlib.sha256(address.encode()).hexdigest()[:12]}"


class KafkaSource:
    """A topic. Options of the connector may follow as a query: `kafka://…/topic?kafka.security.protocol=SSL`."""

    kafka, store = True, False

    def __init__(self, address: str, max_events: int | None) -> None:
        url = urlsplit(address)
        self.servers, self.topic = url.netloc, url.path.strip("/")
        if not self.servers or not self.topic:
            raise ConfigError(f"{redacted_url(address)!r} names no topic: kafka://host:9092/topic")
        if "@" in self.servers:
            raise ConfigError(
                f"{redacted_url(address)!r} has credentials in it: set JQ_KAFKA_SASL_USERNAME and JQ_KAFKA_SASL_PASSWORD instead"
            )
        self.options = {**_credentials(), **dict(parse_qsl(url.query))}
        self.max_events = max_events
        self.name = _name("kafka", f"{self.servers}/{self.topic}")

    def stream(self, spark: SparkSession) -> DataFrame:
        """From the earliest offset; topic data that is gone already stops the stream rather than being skipped."""
        options = {
            "kafka.bootstrap.servers": self.servers,
            "subscribe": self.topic,
            "startingOffsets": "earliest",
            "kafka.isolation.level": "read_committed",
            **({"maxOffsetsPerTrigger": str(self.max_events)} if self.max_events else {}),
            **self.options,
        }
        records = spark.readStream.format("kafka").options(**options).load()
        origin = F.concat_ws(
            "/", "topic", F.col("partition").cast("string"), F.col("offset").cast("string")
        )
        return from_json_lines(
            records.withColumn("value", F.col("value").cast("string")), origin=origin
        )


def _credentials() -> dict[str, str]:
    """What the environment holds, as options of Spark's connector. Over TLS, unless the address says otherwise."""
    found = sasl(os.environ)
    if found is None:
        return {}
    options = {"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": found.mechanism}
    if found.username:
        module = (
            "scram.ScramLoginModule"
            if found.mechanism.startswith("SCRAM")
            else "plain.PlainLoginModule"
        )
        username, password = (
            value.replace("\\", "\\\\").replace('"', '\\"')
            for value in (found.username, found.password)
        )
        options["kafka.sasl.jaas.config"] = (
            f'org.apache.kafka.common.security.{module} required username="{username}" password="{password}";'
        )
    return options


class FileSource:
    """JSON lines in a folder. Files are read once each; they appear whole (by rename) and do not change."""

    kafka, store = False, False

    def __init__(self, folder: str, max_files: int | None) -> None:
        self.folder, self.max_files = folder, max_files
        self.name = _name("files", folder)

    def stream(self, spark: SparkSession) -> DataFrame:
        """Oldest files first. A line that holds a list is taken as its records, so that an empty list is none."""
        reader = (
            spark.readStream.schema(WIRE)
            .option("columnNameOfCorruptRecord", CORRUPT)
            .option("mode", "PERMISSIVE")
        )
        reader = reader.option("recursiveFileLookup", "true").option("pathGlobFilter", "*.jsonl*")
        if self.max_files:
            reader = reader.option("maxFilesPerTrigger", self.max_files)
        # Not the column _metadata.file_path: with it, a copy of 1M lines took 9.0 instead of 7.3 CPU s.
        with as_config_error(f"there are no events to read in {self.folder}"):
            return reader.json(self.folder).withColumn("origin", F.input_file_name())


class StoreSource:
    """The log of every queue of a store. What has been read is acknowledged, so that the store may trim it."""

    kafka, store = False, True

    def __init__(self, url: str, max_events: int | None) -> None:
        self.url, self.max_events = url, max_events
        self.name = _name("store", url)

    def stream(self, spark: SparkSession) -> DataFrame:
        """From the oldest event that is kept. StoreUnavailable at once if there is no answer: Spark would wrap it in its own."""
        from jobq.pipeline.datasource import register

        asyncio.run(self._ask())
        register(spark)
        reader = (
            spark.readStream.format("jobq")
            .option("url", self.url)
            .option("read", "lines")
            .option("reader", "pipeline")
        )
        if self.max_events:
            reader = reader.option("maxEventsPerTrigger", self.max_events)
        return from_json_lines(reader.load(), origin=F.col("origin"))

    async def _ask(self) -> None:
        async with LogReader(self.url) as log:
            await log.queues()
