"""Write of format("jobq"): enqueue one job per row.

The job's id is derived from the row, so a task that Spark runs twice adds no job twice. This also
means that, without an id, equal rows become one job.

Options:

    queue            the queue
    task             the task; a column _task overrides it per row
    id               columns whose values form the job's id, separated by commas
                     (default: the column _id, otherwise a hash of the row)
    prefix           prefix of ids formed from columns or hashes; with another prefix, the same
                     rows become new jobs
    rejected         a folder for rows that are not valid jobs, with the reason
    failOnRejected   true: the write fails if a row was rejected, after all others are enqueued
    report           a file for a summary, written by the driver

Columns: _priority, _delay, _at, _key, _ttl, _result_ttl, _timeout, _max_stalls, _cost and _lifo are
options of the job, unless they are null. Every other column is an argument of that name.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from jobq import Queue
from jobq.api.task import Call, Task
from jobq.core.checks import check_id, did_you_mean
from jobq.errors import ConfigError, InvalidJob
from jobq.pipeline.datasource.columns import required, store_url

OPTIONS = (
    "priority",
    "delay",
    "at",
    "key",
    "ttl",
    "result_ttl",
    "timeout",
    "max_stalls",
    "cost",
    "lifo",
)
_EXAMPLES = 20  # rejected rows that the summary shows


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


class _Rows:
    """Turns rows into calls of tasks."""

    def __init__(self, queue: Queue, options: Mapping[str, str], names: Sequence[str]) -> None:
        self.queue, self.task = queue, options.get("task")
        self.id_columns = _id_columns(options)
        self.prefix = options.get("prefix", "")
        self.options = {f"_{name}": name for name in OPTIONS if f"_{name}" in names}
        self.arguments = [
            name for name in names if name not in self.options and name not in ("_id", "_task")
        ]
        self._tasks: dict[str, Task[..., Any]] = {}

    def calls(
        self, batch: pa.RecordBatch
    ) -> Iterator[Call[Any] | tuple[dict[str, Any], InvalidJob]]:
        """The call for each row, or the row and the error if it is not a valid job."""
        names = batch.schema.names
        for values in zip(*map(_values, batch.columns), strict=True):
            row = dict(zip(names, values, strict=True))
            try:
                yield self._call(row)
            except InvalidJob as e:
                yield row, e

    def _call(self, row: Mapping[str, Any]) -> Call[Any]:
        name = row.get("_task") or self.task
        if not name:
            raise InvalidJob('the row has no task: add .option("task", …) or a column _task')
        arguments, id = {name: row[name] for name in self.arguments}, self._id(name, row)
        options = {
            option: row[column]
            for column, option in self.options.items()
            if row[column] is not None
        }
        if options:
            return self._task(name).options(id=id, **options).bind(**arguments)
        # Most rows only have an id. Setting it in the spec saves a copy of the task per row.
        call = self._task(name).bind(**arguments)
        spec = msgspec.structs.replace(call._spec, id=check_id(id), given_id=True)
        return Call(call._task, spec, call._args, call._kwargs)

    def _task(self, name: str) -> Task[..., Any]:
        if name not in self._tasks:
            self._tasks[name] = self.queue.task_by_name(name)
        return self._tasks[name]

    def _id(self, name: str, row: Mapping[str, Any]) -> str:
        if row.get("_id") is not None:
            return str(row["_id"])
        if self.id_columns:
            missing = [column for column in self.id_columns if row.get(column) is None]
            if missing:
                raise InvalidJob(f"column {missing[0]!r} is null, but it is part of the job's id")
            return self.prefix + ":".join(str(row[column]) for column in self.id_columns)
        text = msgspec.json.encode([name, dict(row)], enc_hook=str, order="deterministic")
        return self.prefix + hashlib.blake2b(text, digest_size=16).hexdigest()


def _id_columns(options: Mapping[str, str]) -> list[str]:
    return [name.strip() for name in options.get("id", "").split(",") if name.strip()]


def _values(column: pa.Array) -> list[Any]:
    """A column as Python values. Uses numpy where the result is the same, because it is faster."""
    kind = column.type
    same = (
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
    )
    values: list[Any] = (
        column.to_numpy(zero_copy_only=False).tolist()
        if same and not column.null_count
        else column.to_pylist()
    )
    return values


class _Writer:
    """The common part of batch and stream writes."""

    def __init__(self, options: Mapping[str, str], names: Sequence[str]) -> None:
        self.options = {name.lower(): value for name, value in options.items()}
        self.names = list(names)
        self.url, self.queue = store_url(options), required(options, "queue")
        for name in _id_columns(self.options):
            if name not in self.names:
                raise ConfigError(
                    f"option id: there is no column {name!r}{did_you_mean(name, self.names)}"
                )

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Loaded:
        """Enqueue the rows of one partition, an Arrow batch at a time."""
        return asyncio.run(self._write(iterator))

    async def _write(self, batches: Iterator[pa.RecordBatch]) -> Loaded:
        loaded = Loaded()
        rejected = _RejectedRows(self.options.get("rejected"))
        async with Queue(self.queue, self.url, tenant=self.options.get("tenant")) as queue:
            rows = _Rows(queue, self.options, self.names)
            for batch in batches:
                # A generator: while the store handles some calls, the next thousand are prepared.
                jobs = await queue.enqueue_many(self._valid(rows.calls(batch), loaded, rejected))
                again = sum(job.duplicate for job in jobs)
                loaded.add(Loaded(accepted=len(jobs) - again, duplicates=again))
        rejected.close()
        return loaded

    @staticmethod
    def _valid(
        calls: Iterable[Call[Any] | tuple[dict[str, Any], InvalidJob]],
        loaded: Loaded,
        rejected: _RejectedRows,
    ) -> Iterator[Call[Any]]:
        for call in calls:
            if isinstance(call, Call):
                yield call
            else:
                row, why = call
                loaded.add(Loaded(rejected=1, examples=[rejected.keep(row, str(why))]))

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
        if total.rejected and self.options.get("failonrejected", "false").lower() == "true":
            raise InvalidJob(
                f"{total.rejected} rows are not valid jobs, e.g. {total.examples[0]} "
                f"({total.accepted} jobs were accepted)"
            )
        return total


class JobsWriter(_Writer, DataSourceArrowWriter):
    """Writes a DataFrame."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Finish the write."""
        self.finish(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing. Accepted jobs stay, and writing again counts them as duplicates."""


class StreamJobsWriter(_Writer, DataSourceStreamArrowWriter):
    """Writes a stream. Each micro-batch is written like a DataFrame."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Finish the micro-batch."""
        self.finish(messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing, as for a DataFrame."""


class _RejectedRows:
    """Writes rejected rows to a folder, as JSON lines. A repeated task replaces its file."""

    def __init__(self, folder: str | None) -> None:
        self.folder = Path(folder) if folder else None
        self._lines: list[str] = []
        self._file: Any = None

    def keep(self, row: Mapping[str, Any], why: str) -> str:
        """Write a row and the reason. Returns the line, cut to 500 characters, as an example."""
        line = msgspec.json.encode({"why": why, "row": dict(row)}, enc_hook=str).decode()
        if self.folder is not None:
            if self._file is None:
                self.folder.mkdir(parents=True, exist_ok=True)
                self._file = (self.folder / f".{self._name()}-{os.getpid()}").open("w")
            self._file.write(line + "\n")
        return line[:500]

    def _name(self) -> str:
        context = TaskContext.get()
        stage, partition = (context.stageId(), context.partitionId()) if context else (0, 0)
        return f"rejected-{stage:05d}-{partition:05d}.jsonl"

    def close(self) -> None:
        """Publish the file under its final name, which is the same for every try of the task."""
        if self._file is not None and self.folder is not None:
            self._file.close()
            Path(self._file.name).rename(self.folder / self._name())
