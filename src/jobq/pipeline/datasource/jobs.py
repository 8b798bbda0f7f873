"""Batch read of format("jobq"): the jobs of a queue with their results.

There is one task per state, and several for a state with more than `jobsPerTask` (20,000) jobs. The
driver divides its listing by cursors, without reading the jobs. A job that keeps its state is read
exactly once. A job that changes its state meanwhile may be read in both, or in none.

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
from jobq.core.records.jobs import Filter as Listing
from jobq.core.records.jobs import QueueName
from jobq.core.records.states import State
from jobq.core.values.checks import check_choice, did_you_mean
from jobq.core.values.printable import redacted_url
from jobq.errors import ConfigError, JobNotFound
from jobq.pipeline.datasource.columns import (
    JOBS,
    check_options,
    count_of,
    existing_store_url,
    flag,
    required,
)

_BATCH = 2_000  # jobs per Arrow batch
_PAGE = 500  # jobs per call to the store
_JOBS_PER_TASK = 20_000  # some seconds of work, many times what it takes Spark to start a task
_STEP = 10_000  # jobs that a store skips per call, at the most
_MOST_TASKS = 200  # of one state: the driver keeps two cursors of each
_MANY = ("state", "id")  # the store can filter by several values of these
_ONE = ("name", "key")  # and by one value of these
_JSON = ("args", "kwargs", "result", "progress")


class Part(InputPartition):
    """What one task reads: the jobs in a state, or with some ids.

    Of a long listing, it reads from the cursor `after` up to the cursor `until`."""

    def __init__(
        self,
        state: str | None,
        ids: tuple[str, ...] = (),
        after: str | None = None,
        until: str | None = None,
    ) -> None:
        super().__init__((state, ids, after, until))
        self.state, self.ids, self.after, self.until = state, ids, after, until


class JobsReader(DataSourceReader):
    """Reads the jobs of one queue."""

    def __init__(self, options: Mapping[str, str]) -> None:
        check_options(options, ("read", "pushdown", "jobsPerTask", *_MANY, *_ONE))
        self.url, self.queue, self.tenant = (
            existing_store_url(options),
            required(options, "queue"),
            options.get("tenant"),
        )
        self.pushdown = flag(options, "pushdown")
        self.per_task = count_of(options, "jobsPerTask", _JOBS_PER_TASK)
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
        """Partitions per state, read in parallel; a single one for a list of ids."""
        states = [
            State(state)
            for state in self.wanted.get("state", tuple(State))
            if state in tuple(State)
        ]
        if "id" in self.wanted:
            return [Part(None, self.wanted["id"])]
        return list(asyncio.run(self._divided(states))) or [Part(None)]

    async def _divided(self, states: Iterable[State]) -> list[Part]:
        """The listings of these states in parts of about the same size."""
        name = QueueName(Queue(self.queue, self.url, tenant=self.tenant).tenant, self.queue)
        found = []
        async with LogReader(self.url) as log:
            counts = await log.counts(*name)
            for state in states:
                cursors: list[str | None] = [None]
                # Active jobs change their places whenever their leases are renewed.
                divided = state is not State.ACTIVE and "*" not in self._name
                if divided and counts[state] > self.per_task:
                    size = max(self.per_task, counts[state] // _MOST_TASKS)
                    cursors += await _cursors(log, Listing(queue=name, state=state), size)
                found += [
                    Part(str(state), (), after, until)
                    for after, until in zip(cursors, [*cursors[1:], None], strict=True)
                ]
        return found

    @property
    def _name(self) -> str:
        """The task to read, in which `*` stands for any text. Empty for all tasks."""
        return self.wanted.get("name", ("",))[0]

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
            elif part.state and part.after is part.until is None:
                async for found in queue.find(state=part.state, name=name, key=key):
                    yield _row(found)
            elif part.state:
                listing = Listing(queue=queue.qname, state=State(part.state), name=name, key=key)
                async for found in _between(queue, listing, part.after, part.until):
                    yield _row(found)


async def _cursors(log: LogReader, listing: Listing, size: int) -> list[str]:
    """The cursors after every `size` jobs, about. A store skips a bounded number per call."""
    steps = -(-size // _STEP)
    found: list[str] = []
    cursor: str | None = None
    while len(found) < _MOST_TASKS:
        for _ in range(steps):
            cursor = await log.skip(listing, cursor, min(size, _STEP))
            if cursor is None:
                return found
        assert cursor is not None
        found.append(cursor)
    return found


async def _between(
    queue: Queue, listing: Listing, after: str | None, until: str | None
) -> AsyncIterator[JobInfo]:
    """The jobs of a listing from one cursor up to another, page by page."""
    store = await queue._context.store()
    more = True
    while more:
        page = await store.find(listing, cursor=after, until=until, limit=_PAGE)
        for record in page.records:
            yield queue._context.job_info(record)
        after, more = page.cursor, page.cursor is not None


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
