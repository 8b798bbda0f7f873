"""How a table lies on disk. Two formats with the same few operations, each idempotent: a crash is repaired by repeating.

Parquet: folders of files. A batch's files carry its name, so that publishing it again replaces them, and a partition is
replaced by swapping its folder: a reader that lists files in that very moment may have to read again.
Delta: the same as transactions, for lakes with many readers at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from jobq.pipeline.fs import Files
from jobq.pipeline.tables import Table

# Values that hardly ever repeat: a dictionary for them is built only to be given up.
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
PLAIN = {f"parquet.enable.dictionary#{name}": "false" for name in _SELDOM_REPEATED}
"""Options for writing Parquet."""


class Part(NamedTuple):
    """A partition: its day (YYYY-MM-DD), and its hour for tables that have one."""

    day: str
    hour: int | None = None

    def path(self) -> str:
        """Its folder."""
        return f"day={self.day}" if self.hour is None else f"day={self.day}/hour={self.hour}"

    def sql(self) -> str:
        """The condition that selects it."""
        return f"day = DATE'{self.day}'" + ("" if self.hour is None else f" AND hour = {self.hour}")

    @staticmethod
    def of(path: str) -> Part:
        """The partition a path lies in."""
        found = dict(step.split("=", 1) for step in path.split("/") if "=" in step)
        return Part(found["day"], int(found["hour"]) if "hour" in found else None)


def any_of(parts: Sequence[Part]) -> str:
    """The condition that selects all of them."""
    return " OR ".join(f"({part.sql()})" for part in parts) or "false"


def empty(spark: SparkSession, table: Table) -> DataFrame:
    """No rows of the table. Spark sees in the plan that there are none, and leaves out what would be done with them."""
    fields = [F.lit(None).cast(field.dataType).alias(field.name) for field in table.schema.fields]
    return spark.range(0).where("false").select(*fields)


class Tablespace(Protocol):
    """Where and how the tables of one lake are kept."""

    def read(
        self, table: Table, parts: Sequence[Part] | None = None, *, without: str | None = None
    ) -> DataFrame:
        """The table, or only those partitions of it. `without`: leave out what the batch of that name has published."""
        ...

    def append(self, table: Table, staged: str, *, batch: str, number: int) -> None:
        """Add the staged files. The same batch again changes nothing more."""
        ...

    def replace(self, table: Table, rows: DataFrame, parts: Sequence[Part]) -> None:
        """Put `rows` in the place of these partitions. The rows may come from the table itself."""
        ...

    def parts(self, table: Table) -> list[Part]:
        """The partitions there are, oldest first."""
        ...

    def drop(self, table: Table, parts: Sequence[Part]) -> None:
        """Remove partitions."""
        ...


class ParquetSpace:
    """Folders of Parquet files."""

    def __init__(self, spark: SparkSession, files: Files, root: str, staging: str) -> None:
        self.spark, self.files, self.root, self.staging = spark, files, root, staging

    def path(self, table: Table) -> str:
        """The table's folder."""
        return f"{self.root}/{table.name}"

    def read(
        self, table: Table, parts: Sequence[Part] | None = None, *, without: str | None = None
    ) -> DataFrame:
        """By folder; by file only where some must be left out."""
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
        """Move the staged files into their partitions, named after their batch."""
        for file in self.files.files(staged):
            part = Part.of(file.path)
            folder = part.path() if len(table.partitions) == 2 else f"day={part.day}"
            self.files.move(file.path, f"{self.path(table)}/{folder}/{batch}-{file.name}")

    def replace(self, table: Table, rows: DataFrame, parts: Sequence[Part]) -> None:
        """Write beside, then swap folder by folder."""
        staged = f"{self.staging}/{table.name}"
        self.files.delete(staged)
        writer = rows.write.mode("overwrite").options(partitionOverwriteMode="static", **PLAIN)
        writer.partitionBy(*table.partition_names).parquet(staged)
        for part in parts:
            target = f"{self.path(table)}/{part.path()}"
            self.files.delete(target)
            if self.files.exists(f"{staged}/{part.path()}"):
                self.files.move(f"{staged}/{part.path()}", target)
        self.files.delete(staged)

    def parts(self, table: Table) -> list[Part]:
        """From the names of the folders."""
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
        """Remove their folders, and that of a day whose hours are gone."""
        for part in parts:
            self.files.delete(f"{self.path(table)}/{part.path()}")
        for day in {part.day for part in parts}:
            if not self.files.children(f"{self.path(table)}/day={day}"):
                self.files.delete(f"{self.path(table)}/day={day}")


class DeltaSpace:
    """Delta tables."""

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
        """A snapshot. `without` has no meaning here: a batch is there whole or not at all."""
        if not self._exists(table):
            return empty(self.spark, table)
        rows = self.spark.read.format("delta").load(self.path(table))
        # A lake that an earlier version began has no column that was added since.
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
        """One transaction, which Delta itself refuses to repeat: its application is the run, its version the batch."""
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
        """One transaction for all of them."""
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
        """From the partition columns."""
        found = self.read(table).select(*table.partition_names).distinct().collect()
        return sorted(Part(str(row[0]), *row[1:]) for row in found)

    def drop(self, table: Table, parts: Sequence[Part]) -> None:
        """A delete by partition touches only metadata; the files go with the next compaction's VACUUM."""
        if parts and self._exists(table):
            self.spark.sql(f"DELETE FROM delta.`{self.path(table)}` WHERE {any_of(parts)}")


def tablespace(
    spark: SparkSession, files: Files, root: str, format: str, staging: str
) -> Tablespace:
    """The tables under `root` in that format. `staging`: a folder for what is being written."""
    kinds: dict[str, Any] = {"parquet": ParquetSpace, "delta": DeltaSpace}
    space: Tablespace = kinds[format](spark, files, root, staging)
    return space
