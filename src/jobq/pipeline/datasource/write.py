"""Write: each row is a call of a task, and its id follows from the row: what Spark runs twice adds nothing twice.

    .option("queue", "mail").option("task", "send")   where to, and what (or per row: column _task)
    .option("id", "invoice")            columns whose values are the job's id; else column _id, else a hash of the row
    columns _priority _delay _at _key _ttl _result_ttl _timeout _max_stalls _cost _lifo   options of the row's job; null: not set
    every other column                  an argument of that name
    .option("prefix", "load-7-")        before ids made of columns or hashes: the same rows again are then other jobs
    .option("rejected", "/folder")      where rows go that are no valid jobs, with the reason
    .option("failOnRejected", "true")   and the write fails after all others are in
    .option("report", "/file.json")     a summary, written by the driver

Without an id, equal rows are one job: that is what makes a repeated task harmless.
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
_EXAMPLES = 20


@dataclass
class Loaded(WriterCommitMessage):
    """What one task did."""

    accepted: int = 0
    duplicates: int = 0
    rejected: int = 0
    examples: list[str] = field(default_factory=list)

    def add(self, other: Loaded) -> None:
        """Count another's with these."""
        self.accepted += other.accepted
        self.duplicates += other.duplicates
        self.rejected += other.rejected
        self.examples = (self.examples + other.examples)[:_EXAMPLES]


class _Rows:
    """From rows to calls."""

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
        """The call each row stands for, or the row and what is wrong with it."""
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
            raise InvalidJob('a row names no task: add .option("task", …) or a column _task')
        arguments, id = {name: row[name] for name in self.arguments}, self._id(name, row)
        options = {
            option: row[column]
            for column, option in self.options.items()
            if row[column] is not None
        }
        if options:
            return self._task(name).options(id=id, **options).bind(**arguments)
        # The usual row has only an id of its own: setting it in the spec saves a copy of the task per row.
        call = self._task(name).bind(**arguments)
        return Call(call._task, msgspec.structs.replace(call._spec, id=check_id(id), given_id=True))

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
                raise InvalidJob(f"column {missing[0]!r}, which makes the id, is null")
            return self.prefix + ":".join(str(row[column]) for column in self.id_columns)
        text = msgspec.json.encode([name, dict(row)], enc_hook=str, order="deterministic")
        return self.prefix + hashlib.blake2b(text, digest_size=16).hexdigest()


def _id_columns(options: Mapping[str, str]) -> list[str]:
    return [name.strip() for name in options.get("id", "").split(",") if name.strip()]


def _values(column: pa.Array) -> list[Any]:
    """A column as Python values: through numpy, which makes no object per value on the way, where that gives the same."""
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
    """What batch and stream have in common."""

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
        """Enqueue what comes, a batch at a time."""
        return asyncio.run(self._write(iterator))

    async def _write(self, batches: Iterator[pa.RecordBatch]) -> Loaded:
        loaded = Loaded()
        rejects = _Rejects(self.options.get("rejected"))
        async with Queue(self.queue, self.url, tenant=self.options.get("tenant")) as queue:
            rows = _Rows(queue, self.options, self.names)
            for batch in batches:
                # A generator: while the store has some of the batch, the next thousand are made ready.
                jobs = await queue.enqueue_many(self._valid(rows.calls(batch), loaded, rejects))
                again = sum(job.duplicate for job in jobs)
                loaded.add(Loaded(accepted=len(jobs) - again, duplicates=again))
        rejects.close()
        return loaded

    @staticmethod
    def _valid(
        calls: Iterable[Call[Any] | tuple[dict[str, Any], InvalidJob]],
        loaded: Loaded,
        rejects: _Rejects,
    ) -> Iterator[Call[Any]]:
        for call in calls:
            if isinstance(call, Call):
                yield call
            else:
                row, why = call
                loaded.add(Loaded(rejected=1, examples=[rejects.keep(row, str(why))]))

    def finish(self, messages: Sequence[WriterCommitMessage | None]) -> Loaded:
        """On the driver, when every task is done."""
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
                f"{total.rejected} rows are no valid jobs, the first: {total.examples[0]} ({total.accepted} jobs were accepted)"
            )
        return total


class JobsWriter(_Writer, DataSourceArrowWriter):
    """A batch."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Add up and report."""
        self.finish(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Jobs that were accepted stay accepted: writing again finds them as duplicates."""


class StreamJobsWriter(_Writer, DataSourceStreamArrowWriter):
    """A stream: the same for each micro-batch."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Add up and report."""
        self.finish(messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """As in a batch."""


class _Rejects:
    """Rows that are no jobs, as JSON lines in a folder; a repeated task replaces what it wrote."""

    def __init__(self, folder: str | None) -> None:
        self.folder = Path(folder) if folder else None
        self._lines: list[str] = []
        self._file: Any = None

    def keep(self, row: Mapping[str, Any], why: str) -> str:
        """Write it down; the line, shortened, serves as an example."""
        line = msgspec.json.encode({"why": why, "row": dict(row)}, enc_hook=str).decode()
        if self.folder is not None:
            if self._file is None:
                self.folder.mkdir(parents=True, exist_ok=True)
                self._file = (self.folder / f".{self._name()}-{os.getpid()}").open("w")
            self._file.write(line + "\n")
        return line[:500]

    def _name(self) -> str:
        context = TaskContext.get()
        return f"rejected-{context.stageId() if context else 0:05d}-{context.partitionId() if context else 0:05d}.jsonl"

    def close(self) -> None:
        """Publish the file under the task's name."""
        if self._file is not None and self.folder is not None:
            self._file.close()
            Path(self._file.name).rename(self.folder / self._name())
