"""Streaming read: the event logs of all queues of a store (or of one), with admission control.

An offset is where each queue's log has been read to. The driver finds out how far a batch goes, the tasks read: one per queue.
What a batch has stored is acknowledged in the store under the name of option `reader` (default `spark`), so that the log
keeps what this stream has not read; two streams need two names. Every event comes once per batch; of a partitioned queue, an
event that arrives while the batch is read may come in the next one as well (its id is the same).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
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
from jobq.core import wire
from jobq.core.event_log import passed
from jobq.core.event_records import EventPage, EventRecord
from jobq.core.records import QueueName
from jobq.pipeline.datasource.columns import EVENTS, LINES, store_url

_PAGE = 5_000
_MAX_EVENTS = 1_000_000
_TIMES = {
    "at": "at_ms",
    "created_at": "created_ms",
    "due_at": "due_ms",
    "started_at": "started_ms",
    "finished_at": "finished_ms",
}

Offset = dict[str, str]
"""Queue (as JSON) → position."""


class Span(InputPartition):
    """A part of one queue's log: after `start`, up to and with `end`."""

    def __init__(self, queue: QueueName, start: str, end: str) -> None:
        super().__init__((queue, start, end))
        self.queue, self.start, self.end = queue, start, end


class EventsReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Options: url; tenant, queue (default: all); maxEventsPerTrigger; startingPosition (earliest, latest); reader."""

    def __init__(self, options: Mapping[str, str]) -> None:
        low = {name.lower(): value for name, value in options.items()}
        self.url, self.tenant, self.queue = store_url(options), low.get("tenant"), low.get("queue")
        self.max_events = int(low.get("maxeventspertrigger", _MAX_EVENTS))
        self.from_now = low.get("startingposition", "earliest") == "latest"
        self.reader = low.get("reader", "spark")
        self.lines = low.get("read") == "lines"
        self.target: Offset | None = None

    def initialOffset(self) -> dict[str, str]:
        """The oldest events kept, or the present end."""
        return asyncio.run(self._ends()) if self.from_now else {}

    def getDefaultReadLimit(self) -> ReadLimit:
        """What one batch takes at most."""
        return ReadMaxRows(self.max_events)

    def prepareForTriggerAvailableNow(self) -> None:
        """What is there now is what will be read."""
        self.target = asyncio.run(self._ends())

    def latestOffset(self, start: dict[str, str], limit: ReadLimit) -> dict[str, str]:
        """How far the next batch goes: the queues take turns until the limit is reached."""
        if isinstance(limit, ReadAllAvailable):
            return {**start, **(self.target or asyncio.run(self._ends()))}
        budget = limit.max_rows if isinstance(limit, ReadMaxRows) else self.max_events
        return asyncio.run(self._advance(start, budget))

    def reportLatestOffset(self) -> dict[str, str] | None:
        """For progress: the present end."""
        return asyncio.run(self._ends())

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> Sequence[InputPartition]:
        """One per queue that moved."""
        return [
            Span(_queue(name), start.get(name, BEGINNING), position)
            for name, position in end.items()
            if position != start.get(name, BEGINNING)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Pages of the log as Arrow batches."""
        assert isinstance(partition, Span)
        schema = to_arrow_schema(LINES if self.lines else EVENTS, timezone="UTC")
        as_rows = _lines if self.lines else _columns
        loop = asyncio.new_event_loop()
        log = LogReader(self.url)
        try:
            loop.run_until_complete(log.__aenter__())
            position: str | None = partition.start
            while position is not None:
                page = loop.run_until_complete(log.page(partition.queue, position, _PAGE))
                events, position = _within(page, position, partition.end)
                if events:
                    yield pa.RecordBatch.from_arrays(
                        [
                            pa.array(values, type=field.type)
                            for values, field in zip(as_rows(events), schema, strict=True)
                        ],
                        schema=schema,
                    )
        finally:
            loop.run_until_complete(log.__aexit__(None, None, None))
            loop.close()

    def commit(self, end: dict[str, str]) -> None:
        """The store need not keep these for us any more."""
        asyncio.run(self._acknowledge(end))

    async def _ends(self) -> Offset:
        async with LogReader(self.url) as log:
            return {_name(queue): await log.end(queue) for queue in await self._queues(log)}

    async def _queues(self, log: LogReader) -> list[QueueName]:
        return [
            queue for queue in await log.queues(self.tenant) if self.queue in (None, queue.queue)
        ]

    async def _advance(self, start: Offset, budget: int) -> Offset:
        """Positions after `start`, about `budget` events further in all."""
        reached = dict(start)
        async with LogReader(self.url) as log:
            for queue in await self._queues(log):
                name = _name(queue)
                position = reached.get(name, BEGINNING)
                if name not in reached:
                    await log.position(
                        queue, self.reader
                    )  # registered, so that from here on nothing unread is trimmed
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
    """The events of a page that are not past `end`, and where to read on; None: that was all."""
    if not page.events or page.position == after:
        return (), None
    done = passed(page.position, end)
    if "," in end or passed(
        end, page.position
    ):  # of several shards, one may be past its end before the others are
        return page.events, None if done else page.position
    return [event for event in page.events if passed(end, event.position)], None


def _lines(events: Sequence[EventRecord]) -> list[list[Any]]:
    return [
        [wire.encode(event).decode() for event in events],
        [f"{e.queue.tenant}/{e.queue.queue}@{e.position}" for e in events],
    ]


def _columns(events: Sequence[EventRecord]) -> list[list[Any]]:
    return [_column(events, name) for name in EVENTS.names]


def _column(events: Sequence[EventRecord], name: str) -> list[Any]:
    if name in _TIMES:
        source = _TIMES[name]
        return [
            None if (ms := getattr(event, source)) is None else ms * 1000 for event in events
        ]  # Arrow's timestamps are in µs
    if name == "tenant":
        return [event.queue.tenant for event in events]
    if name == "queue":
        return [event.queue.queue for event in events]
    return [getattr(event, name) for event in events]
