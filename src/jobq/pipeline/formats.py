"""The file formats of a lake, Parquet and Delta. Operations can be repeated after a crash.

Parquet: folders of files. The files of a batch carry its name, so publishing a batch again replaces
them. A partition is replaced by swapping its folder, and a reader that lists the files at that
moment may have to read again.

Delta: the same operations as transactions, for lakes with concurrent readers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from jobq.pipeline.fs import Files
from jobq.pipeline.tables import Table

# Columns whose values hardly repeat. Parquet would build a dictionary for them and then discard it.
_SELDOM_REPEATED = (
    "id",
    "job",
    "at",
    "created_at",
    "due_at",
    "started_at",
    "finished_at",
    "ended_at",
)
PARQUET_OPTIONS = {f"parquet.enable.dictionary#{name}": "false" for name in _SELDOM_REPEATED}
"""Options for writing Parquet files."""


class Part(NamedTuple):
    """A partition: its day (YYYY-MM-DD), and its hour for tables that have one."""

    day: str
    hour: int | None = None

    def path(self) -> str:
        """The partition's folder, relative to the table."""
        return f"day={self.day}" if self.hour is None else f"day={self.day}/hour={self.hour}"

    def sql(self) -> str:
        """The SQL condition that selects the partition."""
        return f"day = DATE'{self.day}'" + ("" if self.hour is None else f" AND hour = {self.hour}")

    @staticmethod
    def of(path: str) -> Part:
        """The partition of a file or folder, from its path."""
        found = dict(step.split("=", 1) for step in path.split("/") if "=" in step)
        return Part(found["day"], int(found["hour"]) if "hour" in found else None)


def any_of(parts: Sequence[Part]) -> str:
    """The SQL condition that selects all these partitions."""
    return " OR ".join(f"({part.sql()})" for part in parts) or "false"


def empty(spark: SparkSession, table: Table) -> DataFrame:
    """An empty DataFrame of the table. Spark's optimizer removes operations on it."""
    fields = [F.lit(None).cast(field.dataType).alias(field.name) for field in table.schema.fields]
    return spark.range(0).where("false").select(*fields)


class Tablespace(Protocol):
    """Reads and writes the tables of one lake."""

    def read(
        self, table: Table, parts: Sequence[Part] | None = None, *, without: str | None = None
    ) -> DataFrame:
        """Read a table, or some partitions of it. Files of the batch `without` are left out."""
        ...

    def append(self, table: Table, staged: str, *, batch: str, number: int) -> None:
        """Add the staged files. Adding the same batch again changes nothing."""
        ...

    def replace(self, table: Table, rows: DataFrame, parts: Sequence[Part]) -> None:
        """Replace these partitions with `rows`, which may be read from the table itself."""
        ...

    def parts(self, table: Table) -> list[Part]:
        """All partitions of the table, oldest first."""
        ...

    def drop(self, table: Table, parts: Sequence[Part]) -> None:
        """Remove partitions."""
        ...


class ParquetSpace:
    """Tables as folders of Parquet files."""

    def __init__(self, spark: SparkSession, files: Files, root: str, staging: str) -> None:
        self.spark, self.files, self.root, self.staging = spark, files, root, staging

    def path(self, table: Table) -> str:
        """The table's folder."""
        return f"{self.root}/{table.name}"

    def read(
        self, table: Table, parts: Sequence[Part] | None = None, *, without: str | None = None
    ) -> DataFrame:
        """Read whole folders. Single files are listed only if some must be left out."""
        base = self.path(table)
        if parts is None:
            paths = [base] if self.files.children(base) else []
        else:
            paths = [path for part in parts if self.files.exists(path := f"{base}/{part.path()}")]
        if without:
            paths = [
                file.path
                for path in paths
                for file in self.files.files(path)
                if not file.name.startswith(without)
            ]
        if not paths:
            return empty(self.spark, table)
        return self.spark.read.schema(table.schema).option("basePath", base).parquet(*paths)

    def append(self, table: Table, staged: str, *, batch: str, number: int) -> None:
        """Move the staged files to their partitions, with the batch's name as a prefix."""
        for file in self.files.files(staged):
            part = Part.of(file.path)
            folder = part.path() if len(table.partitions) == 2 else f"day={part.day}"
            self.files.move(file.path, f"{self.path(table)}/{folder}/{batch}-{file.name}")

    def replace(self, table: Table, rows: DataFrame, parts: Sequence[Part]) -> None:
        """Write to the staging folder, then swap folder by folder."""
        staged = f"{self.staging}/{table.name}"
        self.files.delete(staged)
        writer = rows.write.mode("overwrite").options(
            partitionOverwriteMode="static", **PARQUET_OPTIONS
        )
        writer.partitionBy(*table.partition_names).parquet(staged)
        for part in parts:
            target = f"{self.path(table)}/{part.path()}"
            self.files.delete(target)
            if self.files.exists(f"{staged}/{part.path()}"):
                self.files.move(f"{staged}/{part.path()}", target)
        self.files.delete(staged)

    def parts(self, table: Table) -> list[Part]:
        """Read the partitions from the folder names."""
        base = self.path(table)
        days = [name for name in self.files.children(base) if name.startswith("day=")]
        if len(table.partitions) == 1:
            return sorted(Part.of(day) for day in days)
        return sorted(
            Part.of(f"{day}/{hour}")
            for day in days
            for hour in self.files.children(f"{base}/{day}")
        )

    def drop(self, table: Table, parts: Sequence[Part]) -> None:
        """Delete the partitions' folders, and the folder of a day that has no hours left."""
        for part in parts:
            self.files.delete(f"{self.path(table)}/{part.path()}")
        for day in {part.day for part in parts}:
            if not self.files.children(f"{self.path(table)}/day={day}"):
                self.files.delete(f"{self.path(table)}/day={day}")


class DeltaSpace:
    """Tables in the Delta format."""

    def __init__(self, spark: SparkSession, files: Files, root: str, staging: str) -> None:
        self.spark, self.files, self.root, self.staging = spark, files, root, staging

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
        # A lake of an earlier version lacks columns that were added since.
        added = {
            field.name: F.lit(None).cast(field.dataType)
            for field in table.schema
            if field.name not in rows.columns
        }
        rows = (
            rows.withColumns(added).select(*table.columns) if added else rows.select(*table.columns)
        )
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

    def parts(self, table: Table) -> list[Part]:
        """Read the partitions from the partition columns."""
        found = self.read(table).select(*table.partition_names).distinct().collect()
        return sorted(Part(str(row[0]), *row[1:]) for row in found)

    def drop(self, table: Table, parts: Sequence[Part]) -> None:
        """Delete by partition. This changes only metadata: a VACUUM removes the files."""
        if parts and self._exists(table):
            self.spark.sql(f"DELETE FROM delta.`{self.path(table)}` WHERE {any_of(parts)}")


def tablespace(
    spark: SparkSession, files: Files, root: str, format: str, staging: str
) -> Tablespace:
    """The tables under `root`, in this format. `staging` is a folder for unfinished files."""
    kinds: dict[str, Any] = {"parquet": ParquetSpace, "delta": DeltaSpace}
    space: Tablespace = kinds[format](spark, files, root, staging)
    return space
