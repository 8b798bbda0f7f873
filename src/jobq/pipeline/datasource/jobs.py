"""Batch read of format("jobq"): the jobs of a queue with their results, one task per state.

The options `state`, `name`, `key` and `id` filter in the store, e.g.
`.option("state", "failed,cancelled")`. With `.option("pushdown", "true")`, such conditions in
`where` are also applied in the store. Then call `load()` again for each query: Spark (at least 4.0
to 4.2) plans the read of a loaded DataFrame once, and would apply the filters of the first query to
later queries. Therefore pushdown is off by default.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, EqualTo, Filter, In, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema

from jobq import Queue
from jobq.api.info import JobInfo, Undecoded
from jobq.client.log_reader import LogReader
from jobq.core.checks import check_choice, did_you_mean
from jobq.core.redact import redacted_url
from jobq.core.states import State
from jobq.errors import ConfigError, JobNotFound
from jobq.pipeline.datasource.columns import (
    JOBS,
    check_options,
    existing_store_url,
    flag,
    required,
)

_BATCH = 2_000  # jobs per Arrow batch
_MANY = ("state", "id")  # the store can filter by several values of these
_ONE = ("name", "key")  # and by one value of these
_JSON = ("args", "kwargs", "result", "progress")


class Part(InputPartition):
    """What one task reads: all jobs in a state, or the jobs with some ids."""

    def __init__(self, state: str | None, ids: tuple[str, ...] = ()) -> None:
        super().__init__((state, ids))
        self.state, self.ids = state, ids


class JobsReader(DataSourceReader):
    """Reads the jobs of one queue."""

    def __init__(self, options: Mapping[str, str]) -> None:
        check_options(options, ("read", "pushdown", *_MANY, *_ONE))
        self.url, self.queue, self.tenant = (
            existing_store_url(options),
            required(options, "queue"),
            options.get("tenant"),
        )
        self.pushdown = flag(options, "pushdown")
        self.wanted: dict[str, tuple[str, ...]] = {
            name: tuple(value.strip() for value in options[name].split(","))
            if name in _MANY
            else (options[name],)
            for name in (*_MANY, *_ONE)
            if options.get(name)
        }
        for state in self.wanted.get("state", ()):
            check_choice(state, "state", tuple(State), error=ConfigError)
        asyncio.run(self._check_queue())

    async def _check_queue(self) -> None:
        """Raise ConfigError if the store has no such queue: most likely, its name is misspelt."""
        tenant = Queue(self.queue, self.url, tenant=self.tenant).tenant
        async with LogReader(self.url) as log:
            names = [found.queue for found in await log.queues(tenant)]
        if self.queue not in names:
            raise ConfigError(
                f"there is no queue {self.queue!r} in {redacted_url(self.url)}"
                f"{did_you_mean(self.queue, names)}"
            )

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take over the filters that the store can apply. Spark applies the returned ones."""
        for filter in filters:
            values = _values(filter) if self.pushdown else None
            if values is None or filter.attribute[0] in self.wanted:  # type: ignore[attr-defined]
                yield filter
            else:
                self.wanted[filter.attribute[0]] = values  # type: ignore[attr-defined]

    def partitions(self) -> list[InputPartition]:
        """One partition per state, read in parallel; a single one for a list of ids."""
        states = [
            state for state in self.wanted.get("state", tuple(State)) if state in tuple(State)
        ]
        if "id" in self.wanted:
            return [Part(None, self.wanted["id"])]
        return [Part(str(state)) for state in states] or [Part(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read jobs as Arrow batches."""
        assert isinstance(partition, Part)
        schema = to_arrow_schema(JOBS, timezone="UTC")
        loop = asyncio.new_event_loop()
        rows = self._rows(partition)
        try:
            while chunk := loop.run_until_complete(_take(rows, _BATCH)):
                yield pa.RecordBatch.from_pylist(chunk, schema=schema)
        finally:
            loop.run_until_complete(rows.aclose())
            loop.close()

    async def _rows(self, part: Part) -> Any:
        name, key = (self.wanted.get(column, (None,))[0] for column in ("name", "key"))
        async with Queue(self.queue, self.url, tenant=self.tenant) as queue:
            if part.ids:
                for id in part.ids:
                    try:
                        found = await queue.job(id).info()
                    except JobNotFound:
                        continue
                    if all(getattr(found, name) in values for name, values in self.wanted.items()):
                        yield _row(found)
            elif part.state:
                async for found in queue.find(state=part.state, name=name, key=key):
                    yield _row(found)


def _values(filter: Filter) -> tuple[str, ...] | None:
    """The values that a filter selects, or None if the store cannot apply the filter."""
    if isinstance(filter, EqualTo) and filter.attribute[0] in (*_MANY, *_ONE):
        return (filter.value,)
    if isinstance(filter, In) and filter.attribute[0] in _MANY:
        return tuple(filter.value)
    return None


async def _take(rows: AsyncIterator[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    taken: list[dict[str, Any]] = []
    async for row in rows:
        taken.append(row)
        if len(taken) == count:
            break
    return taken


def _row(job: JobInfo) -> dict[str, Any]:
    failure = job.failure
    row = {name: getattr(job, name, None) for name in JOBS.names}
    row.update({name: _json(row[name]) for name in _JSON})
    row["state"] = job.state.value
    row["reason"] = failure.reason if failure else job.reason
    row["error_type"] = failure.type if failure else None
    row["error_message"] = failure.message if failure else None
    return row


def _json(value: Any) -> str | None:
    return None if value is None else msgspec.json.encode(value, enc_hook=_as_text).decode()


def _as_text(value: Any) -> Any:
    if isinstance(value, Undecoded):
        return {"codec": value.codec, "data": value.data}
    return value.isoformat() if isinstance(value, datetime) else str(value)
