"""Tables as folders of Parquet files, for a lake on a local disk.

The files of a batch carry its name, so publishing a batch again replaces them. A partition is
replaced by swapping its folder. A reader that lists the files at that moment may have to read
again.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from pyspark.sql import DataFrame, SparkSession

from jobq.pipeline.formats.base import PARQUET_OPTIONS, Part, empty
from jobq.pipeline.fs import Files
from jobq.pipeline.tables import Table


class Swap(msgspec.Struct, frozen=True, kw_only=True):
    """Partitions (as paths) that are being replaced: those with new rows, and those without."""

    table: str
    staged: str
    filled: tuple[str, ...]
    emptied: tuple[str, ...]


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
        """Write to the staging folder, then swap folder by folder.

        A note of the swap is stored first, so that `recover` finishes it after a crash."""
        staged = f"{self.staging}/{table.name}"
        self.files.delete(staged)
        writer = rows.write.mode("overwrite").options(
            partitionOverwriteMode="static", **PARQUET_OPTIONS
        )
        writer.partitionBy(*table.partition_names).parquet(staged)
        swap = Swap(
            table=table.name,
            staged=staged,
            filled=tuple(p.path() for p in parts if self.files.exists(f"{staged}/{p.path()}")),
            emptied=tuple(p.path() for p in parts if not self.files.exists(f"{staged}/{p.path()}")),
        )
        self.files.write(self._note(table.name), msgspec.json.encode(swap).decode())
        self._swap(swap)

    def _note(self, name: str) -> str:
        return f"{self.root}/_jobq/swaps/{name}.json"

    def _swap(self, swap: Swap) -> None:
        """Move the new folders to their places. Idempotent: a moved folder is not staged again."""
        base = f"{self.root}/{swap.table}"
        for path in swap.emptied:
            self.files.delete(f"{base}/{path}")
        for path in swap.filled:
            if self.files.exists(f"{swap.staged}/{path}"):
                self.files.move(f"{swap.staged}/{path}", f"{base}/{path}")
        self.files.delete(self._note(swap.table))
        self.files.delete(swap.staged)

    def recover(self) -> None:
        """Finish the swaps whose notes are there."""
        for name in self.files.children(f"{self.root}/_jobq/swaps"):
            if name.endswith(".json") and (
                text := self.files.read(f"{self.root}/_jobq/swaps/{name}")
            ):
                self._swap(msgspec.json.decode(text, type=Swap))

    def compact(self, table: Table, target: int) -> tuple[int, int] | None:
        """Rewrite each partition that has more files than its size needs."""
        before = after = 0
        for part in self.parts(table):
            files = self.files.files(f"{self.path(table)}/{part.path()}")
            wanted = max(1, -(-sum(file.size for file in files) // target))
            if len(files) > wanted:
                self.replace(table, self.read(table, [part]).repartition(wanted), [part])
                before, after = before + len(files), after + wanted
        return (before, after) if before else None

    def free(self, table: Table, hours: float) -> None:
        """Do nothing: a file that is not part of the table is deleted at once."""

    def forget(self, table: Table) -> None:
        """Do nothing: only the files themselves describe their rows."""

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
