"""Partitions of a table, the options of its files, and the protocol of a format."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

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

    def compact(self, table: Table, target: int) -> tuple[int, int] | None:
        """Merge small files into files of about `target` bytes.

        Returns the number of files before and after, or None if nothing changed."""
        ...

    def free(self, table: Table, hours: float) -> None:
        """Delete files that the table has not used for this many hours.

        Readers of an older version of the table then fail. Parquet tables have no such files."""
        ...

    def forget(self, table: Table) -> None:
        """Delete what the table's own records say about rows that are gone, after `free`.

        Delta's log and Iceberg's manifests have the smallest and the largest value of the columns
        of files that were removed. Parquet files contain such values themselves."""
        ...

    def recover(self) -> None:
        """Finish replacements that a crash has interrupted. Called by the lake's only writer."""
        ...


def with_added_columns(rows: DataFrame, table: Table) -> DataFrame:
    """The table's columns. Those that an older version of jobq did not write are null."""
    added = {
        field.name: F.lit(None).cast(field.dataType)
        for field in table.schema
        if field.name not in rows.columns
    }
    return (rows.withColumns(added) if added else rows).select(*table.columns)
