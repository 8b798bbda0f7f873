"""Tables in the Delta format: every change is a transaction, for lakes with concurrent readers."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession

from jobq.pipeline.formats.base import Part, any_of, empty, with_added_columns
from jobq.pipeline.fs import Files
from jobq.pipeline.tables import Table

_CHECKPOINTS = "delta.checkpointInterval"  # commits between two checkpoints of a table's log
_VERSION = re.compile(r"(\d{20})\.")  # the version with which the name of a log's file begins


class DeltaSpace:
    """Tables in the Delta format."""

    def __init__(
        self, spark: SparkSession, files: Files, root: str, catalog: str | None = None
    ) -> None:
        self.spark, self.files, self.root, self.catalog = spark, files, root, catalog
        self._registered: set[str] = set()

    def _register(self, table: Table) -> None:
        """Add the table to the catalog, if one is configured."""
        if self.catalog and table.name not in self._registered:
            self.spark.sql(f"CREATE SCHEMA IF NOT EXISTS {self.catalog}")
            self.spark.sql(
                f"CREATE TABLE IF NOT EXISTS {self.catalog}.{table.name} USING delta "
                f"LOCATION '{self.path(table)}'"
            )
            self._registered.add(table.name)

    def path(self, table: Table) -> str:
        """The table's folder."""
        return f"{self.root}/{table.name}"

    def _exists(self, table: Table) -> bool:
        return self.files.exists(f"{self.path(table)}/_delta_log")

    def read(
        self, table: Table, parts: Sequence[Part] | None = None, *, without: str | None = None
    ) -> DataFrame:
        """Read a snapshot. `without` is ignored: a batch is one transaction, always complete."""
        if not self._exists(table):
            return empty(self.spark, table)
        rows = self.spark.read.format("delta").load(self.path(table))
        rows = with_added_columns(rows, table)
        return rows if parts is None else rows.where(any_of(parts))

    def append(self, table: Table, staged: str, *, batch: str, number: int) -> None:
        """Append in one transaction. Delta skips a repeated one by its txnAppId and txnVersion."""
        if not self.files.files(staged):
            return
        rows = self.spark.read.schema(table.schema).parquet(staged).select(*table.columns)
        writer = (
            rows.write.format("delta")
            .mode("append")
            .partitionBy(*table.partition_names)
            .option("mergeSchema", "true")
        )
        writer.option("txnAppId", f"{batch.rsplit('-', 1)[0]}-{table.name}").option(
            "txnVersion", number
        ).save(self.path(table))
        self._register(table)

    def replace(self, table: Table, rows: DataFrame, parts: Sequence[Part]) -> None:
        """Replace all partitions in one transaction."""
        if not parts:
            return
        writer = rows.write.format("delta").mode("overwrite").partitionBy(*table.partition_names)
        if self._exists(table):
            writer = writer.option("partitionOverwriteMode", "static").option(
                "replaceWhere", any_of(parts)
            )
            writer = writer.option("mergeSchema", "true")
        writer.save(self.path(table))
        self._register(table)

    def parts(self, table: Table) -> list[Part]:
        """Read the partitions from the partition columns."""
        found = self.read(table).select(*table.partition_names).distinct().collect()
        return sorted(Part(str(row[0]), *row[1:]) for row in found)

    def drop(self, table: Table, parts: Sequence[Part]) -> None:
        """Delete by partition. This changes only metadata: a VACUUM removes the files."""
        if parts and self._exists(table):
            self.spark.sql(f"DELETE FROM delta.`{self.path(table)}` WHERE {any_of(parts)}")

    def compact(self, table: Table, target: int) -> tuple[int, int] | None:
        """Let Delta merge small files, in a transaction of its own."""
        if not self._exists(table):
            return None
        setting = "spark.databricks.delta.optimize.maxFileSize"
        self.spark.conf.set(setting, str(target))
        try:
            metrics = (
                self.spark.sql(f"OPTIMIZE delta.`{self.path(table)}`")
                .select("metrics.numFilesRemoved", "metrics.numFilesAdded")
                .first()
            )
        finally:
            self.spark.conf.unset(setting)
        return (int(metrics[0]), int(metrics[1])) if metrics and metrics[0] else None

    def free(self, table: Table, hours: float) -> None:
        """VACUUM. Delta refuses less than a week by default, because it does not know how long
        readers take; here the caller decides."""
        if not self._exists(table):
            return
        settings = {
            "spark.databricks.delta.retentionDurationCheck.enabled": "false",
            # Delta lists the files with this many tasks. The default, 10,000, takes minutes.
            "spark.sql.sources.parallelPartitionDiscovery.parallelism": str(
                self.spark.conf.get("spark.sql.shuffle.partitions")
            ),
        }
        before = {name: self.spark.conf.get(name, None) for name in settings}
        try:
            for name, value in settings.items():
                self.spark.conf.set(name, value)
            self.spark.sql(f"VACUUM delta.`{self.path(table)}` RETAIN {hours:g} HOURS")
        finally:
            for name, old in before.items():
                if old is None:
                    self.spark.conf.unset(name)
                else:
                    self.spark.conf.set(name, old)

    def forget(self, table: Table) -> None:
        """Write a checkpoint, which describes the files in use only, and delete the log before it.

        A stream that reads the table, and reads of older versions, must start again. Delta itself
        deletes its log after 30 days."""
        if not self._exists(table):
            return
        log, name = f"{self.path(table)}/_delta_log", f"delta.`{self.path(table)}`"
        found = (
            self.spark.sql(f"SHOW TBLPROPERTIES {name}").where(f"key = '{_CHECKPOINTS}'").first()
        )
        try:
            # Delta writes a checkpoint after a commit whose version the interval divides.
            self.spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('{_CHECKPOINTS}' = '1')")
        finally:
            self.spark.sql(
                f"ALTER TABLE {name} UNSET TBLPROPERTIES IF EXISTS ('{_CHECKPOINTS}')"
                if found is None
                else f"ALTER TABLE {name} SET TBLPROPERTIES ('{_CHECKPOINTS}' = '{found.value}')"
            )
        versions = {
            file: int(match[1])
            for file in self.files.children(log)
            if (match := _VERSION.match(file))
        }
        last = max((n for file, n in versions.items() if ".checkpoint." in file), default=0)
        for file in [file for file, n in versions.items() if n < last]:
            self.files.delete(f"{log}/{file}")

    def recover(self) -> None:
        """Do nothing: a replacement is one transaction."""
