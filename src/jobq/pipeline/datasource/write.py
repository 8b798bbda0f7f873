"""Write of format("jobq"): enqueue one job per row.

The job's id is derived from the row, so a task that Spark runs twice adds no job twice. This also
means that, without an id, equal rows become one job.

If a row is not a valid job, the write fails, and nothing of the row's partition is enqueued: each
partition is checked before its first job is stored. Other partitions may be stored by then. Write
again when the rows are fixed: jobs that are stored already count as duplicates.

Options:

    queue            the queue
    task             the task; a column _task overrides it per row
    id               columns whose values form the job's id, separated by commas
                     (default: the column _id, otherwise a hash of the row)
    prefix           prefix of ids formed from columns or hashes; with another prefix, the same
                     rows become new jobs
    rejects          a folder: rows that are not valid jobs are written there as Parquet, with the
                     reason in a column _why, and all other rows are enqueued
    report           a file for a summary, written by the driver

Columns: `_priority` sets the option `priority` of the row's job unless it is null, and so on (the
rows with `column` in core/rules/options.py); `_meta` is a map of strings. Any other name that
begins with `_` is an error. Every other column is an argument of that name.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from jobq import Queue
from jobq.api.task import Call
from jobq.errors import ConfigError, InvalidJob
from jobq.pipeline.datasource.columns import check_options, lowered, required, store_url
from jobq.pipeline.datasource.rejects import Problems, Rejects, example
from jobq.pipeline.datasource.rows import Rows, check_columns, id_columns

_KNOWN = ("task", "id", "prefix", "rejects", "report")
_EXAMPLES = 20  # rejected rows that the summary shows
# Bytes of a partition that are held in memory while it is checked. More goes to a temporary file.
_IN_MEMORY = 64 * 1024 * 1024


@dataclass
class Loaded(WriterCommitMessage):
    """What one task of the write did."""

    accepted: int = 0
    duplicates: int = 0
    rejected: int = 0
    examples: list[str] = field(default_factory=list)

    def add(self, other: Loaded) -> None:
        """Add another task's counts."""
        self.accepted += other.accepted
        self.duplicates += other.duplicates
        self.rejected += other.rejected
        self.examples = (self.examples + other.examples)[:_EXAMPLES]


class _Writer:
    """The common part of batch and stream writes."""

    stream = False

    def __init__(self, options: Mapping[str, str], names: Sequence[str]) -> None:
        check_options(options, _KNOWN, stream=self.stream)
        self.options, self.names = lowered(options), list(names)
        self.url, self.queue = store_url(options), required(options, "queue")
        check_columns(self.names, id_columns(self.options))
        if not self.options.get("task") and "_task" not in self.names:
            raise ConfigError('the rows have no task: add .option("task", …) or a column _task')
        self.id = uuid.uuid4().hex[:12]  # made on the driver, so all tasks of a write share it

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Loaded:
        """Enqueue the rows of one partition, an Arrow batch at a time."""
        return asyncio.run(self._write(iterator))

    async def _write(self, batches: Iterator[pa.RecordBatch]) -> Loaded:
        loaded, folder = Loaded(), self.options.get("rejects")
        rejects = Rejects(folder, self.id) if folder else None
        async with Queue(self.queue, self.url, tenant=self.options.get("tenant")) as queue:
            rows = Rows(queue, self.options, self.names)
            for batch in batches if rejects else _checked(rows, batches):
                # A generator: while the store handles some calls, the next thousand are prepared.
                jobs = await queue.enqueue_many(_valid(rows, batch, loaded, rejects))
                again = sum(job.duplicate for job in jobs)
                loaded.add(Loaded(accepted=len(jobs) - again, duplicates=again))
        if rejects:
            rejects.close()
        return loaded

    def finish(self, messages: Sequence[WriterCommitMessage | None]) -> Loaded:
        """Add up all tasks and write the report. Runs on the driver."""
        total = Loaded()
        for message in messages:
            if isinstance(message, Loaded):
                total.add(message)
        if path := self.options.get("report"):
            summary = {
                "accepted": total.accepted,
                "duplicates": total.duplicates,
                "rejected": total.rejected,
                "examples": total.examples,
            }
            Path(path).write_text(json.dumps(summary))
        return total


def _checked(rows: Rows, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches again, once every row is known to be a valid job. Raises InvalidJob otherwise."""
    problems, count = Problems(), 0
    with tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY) as kept:
        writer: Any = None
        for batch in batches:
            count += batch.num_rows
            for call in rows.calls(batch):
                if not isinstance(call, Call):
                    problems.add(call[0], str(call[1]))
            if not problems.total:
                writer = writer or pa.ipc.new_stream(kept, batch.schema)
                writer.write_batch(batch)
        if problems.total:
            raise InvalidJob(problems.summary(count))
        if writer is not None:
            writer.close()
            kept.seek(0)
            yield from pa.ipc.open_stream(kept)


def _valid(
    rows: Rows, batch: pa.RecordBatch, loaded: Loaded, rejects: Rejects | None
) -> Iterator[Call[Any]]:
    """The calls of a batch. Rows that are not valid jobs are counted and kept in `rejects`."""
    indexes, reasons = [], []
    for index, call in enumerate(rows.calls(batch)):
        if isinstance(call, Call):
            yield call
        else:
            row, why = call
            indexes.append(index)
            reasons.append(str(why))
            loaded.add(Loaded(rejected=1, examples=[f"{why}: {example(row)}"]))
    if indexes and rejects:
        rejects.keep(batch, indexes, reasons)


class JobsWriter(_Writer, DataSourceArrowWriter):
    """Writes a DataFrame."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Finish the write."""
        self.finish(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing. Accepted jobs stay, and writing again counts them as duplicates."""


class StreamJobsWriter(_Writer, DataSourceStreamArrowWriter):
    """Writes a stream. Each micro-batch is written like a DataFrame."""

    stream = True

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Finish the micro-batch."""
        self.finish(messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing, as for a DataFrame."""
