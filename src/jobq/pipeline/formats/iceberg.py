"""Tables in the Iceberg format: every change is a snapshot, for lakes with concurrent readers.

Without a configured catalog, the tables are in a Hadoop catalog whose warehouse is the lake's
folder, so a table's folder is where the other formats have it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from jobq.pipeline.formats.base import Part, any_of, empty, with_added_columns
from jobq.pipeline.fs import Files
from jobq.pipeline.tables import Table

_BATCH = "jobq.batch"
"""The property of a snapshot that names the batch it has added."""
_MANIFEST_BYTES = "commit.manifest.target-size-bytes"
"""The property of a table with the size of its manifests. Lakes have Iceberg's default."""


class IcebergSpace:
    """Tables in the Iceberg format."""

    def __init__(
        self, spark: SparkSession, files: Files, root: str, catalog: str | None = None
    ) -> None:
        self.spark, self.files, self.root = spark, files, root
        if catalog is None:
            catalog = f"jobq_{hashlib.sha256(root.encode()).hexdigest()[:12]}"
            setting = f"spark.sql.catalog.{catalog}"
            spark.conf.set(setting, "org.apache.iceberg.spark.SparkCatalog")
            spark.conf.set(f"{setting}.type", "hadoop")
            spark.conf.set(f"{setting}.warehouse", root)
        self.catalog = catalog

    def name(self, table: Table) -> str:
        """The table's name in SQL."""
        return f"{self.catalog}.{table.name}"

    def _exists(self, table: Table) -> bool:
        return self.spark.catalog.tableExists(self.name(table))

    def read(
        self, table: Table, parts: Sequence[Part] | None = None, *, without: str | None = None
    ) -> DataFrame:
        """Read a snapshot. `without` is ignored: a batch is one snapshot, always complete."""
        if not self._exists(table):
            return empty(self.spark, table)
        rows = with_added_columns(self.spark.table(self.name(table)), table)
        return rows if parts is None else rows.where(any_of(parts))

    def append(self, table: Table, staged: str, *, batch: str, number: int) -> None:
        """Append in one snapshot. It names its batch, so that a repeated batch is skipped."""
        if not self.files.files(staged):
            return
        rows = self.spark.read.schema(table.schema).parquet(staged).select(*table.columns)
        self._prepare(table)
        done = self.spark.table(f"{self.name(table)}.snapshots").where(
            F.col("summary").getItem(_BATCH) == batch
        )
        if done.isEmpty():
            writer = rows.writeTo(self.name(table))
            writer.option(f"snapshot-property.{_BATCH}", batch).append()

    def _prepare(self, table: Table) -> None:
        """Create the table, or add columns that an older version of jobq did not have."""
        if not self._exists(table):
            if "." in self.catalog:  # a schema of a configured catalog
                self.spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {self.catalog}")
            columns = ", ".join(f"`{c.name}` {c.type}" for c in (*table.body, *table.partitions))
            by = ", ".join(table.partition_names)
            self.spark.sql(
                f"CREATE TABLE {self.name(table)} ({columns}) USING iceberg PARTITIONED BY ({by}) "
                "TBLPROPERTIES ('write.parquet.compression-codec' = 'zstd')"
            )
            return
        known = self.spark.table(self.name(table)).columns
        if added := [c for c in table.body if c.name not in known]:
            columns = ", ".join(f"`{c.name}` {c.type}" for c in added)
            self.spark.sql(f"ALTER TABLE {self.name(table)} ADD COLUMNS ({columns})")

    def replace(self, table: Table, rows: DataFrame, parts: Sequence[Part]) -> None:
        """Replace all partitions in one snapshot."""
        if parts:
            self._prepare(table)
            rows.writeTo(self.name(table)).overwrite(F.expr(any_of(parts)))

    def parts(self, table: Table) -> list[Part]:
        """Read the partitions from the table's metadata."""
        if not self._exists(table):
            return []
        names = [f"partition.{name}" for name in table.partition_names]
        found = self.spark.table(f"{self.name(table)}.partitions").select(*names).collect()
        return sorted({Part(str(row[0]), *row[1:]) for row in found})

    def drop(self, table: Table, parts: Sequence[Part]) -> None:
        """Delete by partition. This changes only metadata: `free` removes the files."""
        if parts and self._exists(table):
            self.spark.sql(f"DELETE FROM {self.name(table)} WHERE {any_of(parts)}")

    def _call(self, procedure: str, table: Table, more: str) -> DataFrame:
        catalog, _, schema = self.catalog.partition(".")
        name = f"{schema}.{table.name}" if schema else table.name
        return self.spark.sql(f"CALL {catalog}.system.{procedure}(table => '{name}', {more})")

    def compact(self, table: Table, target: int) -> tuple[int, int] | None:
        """Let Iceberg merge small files, in a snapshot of its own."""
        if not self._exists(table):
            return None
        options = f"options => map('target-file-size-bytes', '{target}', 'min-input-files', '2')"
        row = self._call("rewrite_data_files", table, options).first()
        before = int(row["rewritten_data_files_count"]) if row else 0
        return (before, int(row["added_data_files_count"])) if row and before else None

    def free(self, table: Table, hours: float) -> None:
        """Expire old snapshots, with the files that only they use."""
        if self._exists(table):
            before = datetime.now(UTC) - timedelta(hours=hours)
            when = before.strftime("%Y-%m-%d %H:%M:%S.%f")
            self._call(
                "expire_snapshots", table, f"older_than => TIMESTAMP '{when}', retain_last => 1"
            ).collect()

    def forget(self, table: Table) -> None:
        """Write the manifests again without the files that are gone, and delete the old manifests.

        The manifest of a snapshot that removes files lists them, with the smallest and the largest
        value of each column. Later snapshots use the same manifest."""
        if not self._exists(table):
            return
        name = self.name(table)
        manifests = self.spark.table(f"{name}.manifests")
        found = manifests.select("length", "deleted_data_files_count").collect()
        if not any(row.deleted_data_files_count for row in found):
            return
        # Iceberg leaves a single manifest alone unless it is larger than it should be.
        if alone := len(found) == 1:
            smaller = f"'{_MANIFEST_BYTES}' = '{found[0].length - 1}'"
            self.spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ({smaller})")
        try:
            self._call("rewrite_manifests", table, "use_caching => false").collect()
        finally:
            if alone:
                self.spark.sql(f"ALTER TABLE {name} UNSET TBLPROPERTIES ('{_MANIFEST_BYTES}')")
        self.free(table, 0)

    def recover(self) -> None:
        """Do nothing: a replacement is one snapshot."""
