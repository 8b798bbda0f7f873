"""Rows that are not valid jobs: a summary for an error message, or a folder of Parquet files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs
from pyspark import TaskContext

_REASONS = 3  # different reasons that an error message shows
_WIDTH = 300  # characters of a row that are shown
WHY = "_why"
"""The column with the reason, in the files of rejected rows."""


class Problems:
    """Counts rejected rows by reason, with the first row of each."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._first: dict[str, str] = {}

    def add(self, row: Mapping[str, Any], why: str) -> None:
        """Add a row and the reason."""
        self._counts[why] += 1
        if len(self._first) < _REASONS:
            self._first.setdefault(why, example(row))

    @property
    def total(self) -> int:
        """The number of rejected rows."""
        return self._counts.total()

    def summary(self, rows: int) -> str:
        """How many of the rows were rejected, and the first reasons. One line."""
        reasons = [
            f"{why} ({self._counts[why]:,} rows, e.g. {row})" for why, row in self._first.items()
        ]
        more = len(self._counts) - len(self._first)
        return (
            f"{self.total:,} of {rows:,} rows of a partition are not valid jobs, so nothing of the "
            f"partition was enqueued: {'; '.join(reasons)}"
            + (f"; and {more:,} more reasons" if more else "")
            + '. Fix the rows, or keep them elsewhere with .option("rejects", FOLDER)'
        ).replace("\n", " ")


def example(row: Mapping[str, Any]) -> str:
    """A row as JSON, cut to a readable length."""
    return msgspec.json.encode(dict(row), enc_hook=str).decode()[:_WIDTH]


class Rejects:
    """Writes rejected rows of one task to a folder, as one Parquet file with the column `_why`.

    A repeated task replaces its file. Another write never does, because `write` names the write."""

    def __init__(self, folder: str, write: str) -> None:
        url = folder.replace("s3a://", "s3://", 1)
        self._fs: Any = fs.LocalFileSystem()
        self._folder = folder
        if "://" in url:
            self._fs, self._folder = fs.FileSystem.from_uri(url)
        context = TaskContext.get()
        stage, part = (context.stageId(), context.partitionId()) if context else (0, 0)
        self._name = f"rejects-{write}-{stage:05d}-{part:05d}.parquet"
        self._writer: pq.ParquetWriter | None = None

    def keep(self, batch: pa.RecordBatch, indexes: Sequence[int], reasons: Sequence[str]) -> None:
        """Write the rows at these indexes of a batch."""
        rows = pa.Table.from_batches([batch]).take(pa.array(indexes, pa.int64()))
        rows = rows.append_column(WHY, pa.array(reasons, pa.string()))
        if self._writer is None:
            self._fs.create_dir(self._folder, recursive=True)
            self._writer = pq.ParquetWriter(
                f"{self._folder}/.{self._name}", rows.schema, filesystem=self._fs
            )
        self._writer.write_table(rows)

    def close(self) -> None:
        """Publish the file under its final name, which is the same for every try of the task."""
        if self._writer is not None:
            self._writer.close()
            self._fs.move(f"{self._folder}/.{self._name}", f"{self._folder}/{self._name}")
