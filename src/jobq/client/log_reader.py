"""Reads a store's event log page by page, for the relay and the Spark source.

They keep a position, read bounded pages and acknowledge what they have stored; the store keeps the
log until then. A program that follows what happens uses `Queue.events()` instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from jobq.core.records.event_log import before
from jobq.core.records.events import EventPage, EventRecord
from jobq.core.records.jobs import Filter, JobKey, JobRecord, Page, QueueName
from jobq.core.records.states import State
from jobq.stores import open_store

BEGINNING = "0"
"""The position before the oldest event that is kept."""


class LogReader:
    """The log at a store's URL: `async with LogReader(url) as log`."""

    def __init__(self, url: str) -> None:
        self.store = open_store(url)

    async def queues(self, tenant: str | None = None) -> list[QueueName]:
        """All queues, or those of one tenant."""
        return [record.queue for record in await self.store.queues(tenant)]

    async def page(self, queue: QueueName, after: str, limit: int = 1000) -> EventPage:
        """About `limit` events after a position. An empty page means that there are no more yet."""
        return await self.store.read_events(queue, after=after, limit=limit)

    async def position(self, queue: QueueName, reader: str) -> str:
        """The position a reader has acknowledged. A new reader is registered at BEGINNING."""
        position = await self.store.ack_events(queue, reader, None)
        if position is None:
            position = await self.store.ack_events(queue, reader, BEGINNING) or BEGINNING
        return position

    async def acknowledge(self, queue: QueueName, reader: str, position: str) -> None:
        """Tell the store that the reader no longer needs the events up to `position`."""
        await self.store.ack_events(queue, reader, position)

    async def end(self, queue: QueueName) -> str:
        """The position of the last event of the queue's log."""
        return (await self.store.read_events(queue, after=None)).position

    async def last_events(self, queue: QueueName) -> tuple[EventRecord, ...]:
        """The events of the last entry of each shard, as far as the log still has them."""
        end = await self.end(queue)
        if not end.strip("0-,"):
            return ()
        page = await self.store.read_events(queue, after=before(end), until=end)
        return tuple(event for event in page.events if event.kind != "gap")

    async def jobs(self, keys: Sequence[JobKey]) -> list[JobRecord | None]:
        """The jobs as they are now, in order. None for a job that does not exist."""
        return await self.store.get(keys)

    async def find(self, filter: Filter, *, cursor: str | None = None, limit: int = 100) -> Page:
        """A page of a queue's jobs, newest first within a state."""
        return await self.store.find(filter, cursor=cursor, limit=limit)

    async def skip(self, filter: Filter, cursor: str | None, count: int) -> str | None:
        """A cursor further on in a listing, without reading the jobs. None at its end."""
        return await self.store.skip(filter, cursor=cursor, count=count)

    async def counts(self, tenant: str, queue: str) -> dict[State, int]:
        """How many jobs are in each state."""
        return await self.store.count(QueueName(tenant, queue))

    async def __aenter__(self) -> Self:
        await self.store.__aenter__()
        return self

    async def __aexit__(
        self, t: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.store.__aexit__(t, e, tb)
