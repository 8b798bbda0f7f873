"""Streaming read of format("jobq"): the event logs of a store's queues, with admission control.

An offset holds a position for each queue's log. The driver decides how far a batch reads, and one
task per queue reads the events. After a batch, the reader acknowledges its positions in the store,
under the name of option `reader` (default `spark`). The store keeps events that the reader has not
acknowledged. Two streams need two names.

Of each log, a batch contains all events from its start to its end. With option `read` = `lines`, it
says so by a mark (`core.records.marks`) per shard.

A batch contains no event twice. For a partitioned queue, an event that arrives while a batch is
read may also be in the next batch, with the same id.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from jobq.client.log_reader import BEGINNING, LogReader
from jobq.core.records import marks, wire
from jobq.core.records.event_log import passed
from jobq.core.records.events import FIELDS, EventPage, EventRecord
from jobq.core.records.jobs import QueueName
from jobq.core.values.checks import check_choice
from jobq.errors import ConfigError
from jobq.pipeline.datasource.columns import (
    EVENTS,
    LINES,
    check_options,
    count_of,
    existing_store_url,
    lowered,
)

_PAGE = 5_000  # events per call to the store
_MAX_EVENTS = 1_000_000  # events per batch, unless maxEventsPerTrigger is set
_FIELDS = {field.shown: field for field in FIELDS}

Offset = dict[str, str]
"""Queue (as JSON) → position."""


class Span(InputPartition):
    """A part of one queue's log: after `start`, up to and including `end`."""

    def __init__(self, queue: QueueName, start: str, end: str) -> None:
        super().__init__((queue, start, end))
        self.queue, self.start, self.end = queue, start, end


class EventsReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads events from a store, as a stream.

    Options: url; tenant and queue (default: all); maxEventsPerTrigger; startingPosition, which is
    earliest (default) or latest; reader."""

    def __init__(self, options: Mapping[str, str]) -> None:
        check_options(
            options, ("read", "maxEventsPerTrigger", "startingPosition", "reader"), stream=True
        )
        low = lowered(options)
        self.url = existing_store_url(options)
        self.tenant, self.queue = low.get("tenant"), low.get("queue")
        self.max_events = count_of(options, "maxEventsPerTrigger", _MAX_EVENTS)
        start = low.get("startingposition", "earliest")
        check_choice(start, "startingPosition", ("earliest", "latest"), error=ConfigError)
        self.from_now = start == "latest"
        self.reader = low.get("reader", "spark")
        self.lines = low.get("read") == "lines"
        self.target: Offset | None = None

    def initialOffset(self) -> dict[str, str]:
        """Start at the oldest stored event, or at the current end of the logs."""
        return asyncio.run(self._ends()) if self.from_now else {}

    def getDefaultReadLimit(self) -> ReadLimit:
        """The maximum number of events per batch."""
        return ReadMaxRows(self.max_events)

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the current end of the logs as the end of this run."""
        self.target = asyncio.run(self._ends())

    def latestOffset(self, start: dict[str, str], limit: ReadLimit) -> dict[str, str]:
        """How far the next batch reads: queue after queue, until the limit is reached."""
        if isinstance(limit, ReadAllAvailable):
            return {**start, **(self.target or asyncio.run(self._ends()))}
        budget = limit.max_rows if isinstance(limit, ReadMaxRows) else self.max_events
        return asyncio.run(self._advance(start, budget))

    def reportLatestOffset(self) -> dict[str, str] | None:
        """The current end of the logs, for Spark's progress report."""
        return asyncio.run(self._ends())

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> Sequence[InputPartition]:
        """One partition per queue with new events."""
        return [
            Span(_queue(name), start.get(name, BEGINNING), position)
            for name, position in end.items()
            if position != start.get(name, BEGINNING)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a part of a log as Arrow batches, one per page."""
        assert isinstance(partition, Span)
        schema = to_arrow_schema(LINES if self.lines else EVENTS, timezone="UTC")
        as_rows = _lines if self.lines else _columns
        loop = asyncio.new_event_loop()
        log = LogReader(self.url)
        try:
            loop.run_until_complete(log.__aenter__())
            position: str | None = partition.start
            reached: dict[int, marks.Mark] = {}
            while position is not None:
                page = loop.run_until_complete(log.page(partition.queue, position, _PAGE))
                events, position = _within(page, position, partition.end)
                reached |= marks.reached(events)
                if events:
                    yield pa.RecordBatch.from_arrays(
                        [
                            pa.array(values, type=field.type)
                            for values, field in zip(as_rows(events), schema, strict=True)
                        ],
                        schema=schema,
                    )
            if self.lines and reached:
                yield pa.RecordBatch.from_arrays(_marks(reached.values()), schema=schema)
        finally:
            loop.run_until_complete(log.__aexit__(None, None, None))
            loop.close()

    def commit(self, end: dict[str, str]) -> None:
        """Acknowledge the events of a finished batch. The store may then trim them."""
        asyncio.run(self._acknowledge(end))

    async def _ends(self) -> Offset:
        async with LogReader(self.url) as log:
            return {_name(queue): await log.end(queue) for queue in await self._queues(log)}

    async def _queues(self, log: LogReader) -> list[QueueName]:
        return [
            queue for queue in await log.queues(self.tenant) if self.queue in (None, queue.queue)
        ]

    async def _advance(self, start: Offset, budget: int) -> Offset:
        """The positions about `budget` events after `start`, in total."""
        reached = dict(start)
        async with LogReader(self.url) as log:
            for queue in await self._queues(log):
                name = _name(queue)
                position = reached.get(name, BEGINNING)
                if name not in reached:
                    # Register the reader, so that from now on the store trims nothing unread.
                    await log.position(queue, self.reader)
                stop = None if self.target is None else self.target.get(name, position)
                while budget > 0 and position != stop:
                    page = await log.page(queue, position, min(budget, _PAGE))
                    events, after = (
                        _within(page, position, stop)
                        if stop
                        else (page.events, page.position if page.events else None)
                    )
                    budget -= len(events)
                    position = stop if stop and after is None else page.position
                    if after is None:
                        break
                reached[name] = position
        return reached

    async def _acknowledge(self, end: Offset) -> None:
        async with LogReader(self.url) as log:
            for name, position in end.items():
                await log.acknowledge(_queue(name), self.reader, position)


def _name(queue: QueueName) -> str:
    return json.dumps(queue)


def _queue(name: str) -> QueueName:
    return QueueName(*json.loads(name))


def _within(page: EventPage, after: str, end: str) -> tuple[Sequence[EventRecord], str | None]:
    """The events of a page up to `end`, and the position to continue from, or None at the end."""
    if not page.events or page.position == after:
        return (), None
    done = passed(page.position, end)
    # With several shards, one may be past its end before the others are.
    if "," in end or passed(end, page.position):
        return page.events, None if done else page.position
    return [event for event in page.events if passed(end, event.position)], None


def _lines(events: Sequence[EventRecord]) -> list[list[Any]]:
    return [
        [wire.encode(event).decode() for event in events],
        [f"{e.queue.tenant}/{e.queue.queue}@{e.position}" for e in events],
    ]


def _marks(reached: Iterable[marks.Mark]) -> list[pa.Array]:
    lines = [(marks.encode(mark).decode(), "/".join(mark.queue)) for mark in reached]
    return [pa.array(column, type=pa.string()) for column in zip(*lines, strict=True)]


def _columns(events: Sequence[EventRecord]) -> list[list[Any]]:
    return [_column(events, name) for name in EVENTS.names]


def _column(events: Sequence[EventRecord], name: str) -> list[Any]:
    field = _FIELDS[name]
    values = map(attrgetter(field.path), events)
    if field.word == "time":  # Arrow's timestamps are in microseconds
        return [None if value is None else value * 1000 for value in values]
    if field.word == "map":  # Arrow takes a map as pairs
        return [None if value is None else list(value.items()) for value in values]
    return list(values)
