"""Rows of a DataFrame as calls of tasks.

Columns whose names begin with `_` set the row's task, id and options. Every other column is an
argument of that name; a map arrives as an object.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from jobq import Queue
from jobq.api.task import Call, Task
from jobq.core.rules.options import BY_NAME
from jobq.core.values.checks import check_id, did_you_mean
from jobq.errors import ConfigError, InvalidJob

OPTIONS = tuple(name for name, option in BY_NAME.items() if option.column)
_COLUMNS = ("_id", "_task", *(f"_{name}" for name in OPTIONS))


def check_columns(names: Sequence[str], id_columns: Sequence[str]) -> None:
    """Raise ConfigError for a `_column` that means nothing, and for an id without its column."""
    for name in names:
        if name.startswith("_") and name not in _COLUMNS:
            near = did_you_mean(name, _COLUMNS)
            raise ConfigError(
                f"column {name!r} is not an option of a job{near}"
                + ("" if near else f": the options are {', '.join(_COLUMNS)}")
                + ". An argument's name cannot begin with an underscore here: rename the column"
            )
    for name in id_columns:
        if name not in names:
            raise ConfigError(f"option id: there is no column {name!r}{did_you_mean(name, names)}")


class Rows:
    """Turns rows into calls of tasks."""

    def __init__(self, queue: Queue, options: Mapping[str, str], names: Sequence[str]) -> None:
        self.queue, self.task = queue, options.get("task")
        self.id_columns = id_columns(options)
        self.prefix = options.get("prefix", "")
        self.options = {f"_{name}": name for name in OPTIONS if f"_{name}" in names}
        self.arguments = [
            name for name in names if name not in self.options and name not in ("_id", "_task")
        ]
        self._tasks: dict[str, Task[..., Any]] = {}

    def calls(
        self, batch: pa.RecordBatch
    ) -> Iterator[Call[Any] | tuple[dict[str, Any], InvalidJob]]:
        """The call of each row, in order; for a row that is not a valid job, the row and why."""
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


def id_columns(options: Mapping[str, str]) -> list[str]:
    """The columns that form the job's id, from the option `id`."""
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
        else column.to_pylist(maps_as_pydicts="strict")
    )
    return values
