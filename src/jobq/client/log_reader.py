"""The event log of a store, page by page, for those who ship it or load it elsewhere: the relay and the Spark source.

A program that wants to hear what happens uses `Queue.events()`; this is for readers that keep a position, read in bounded
pages and acknowledge what they have stored, so that the log is kept for them until then.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from jobq.core.event_records import EventPage
from jobq.core.records import QueueName
from jobq.core.states import State
from jobq.stores import open_store

BEGINNING = "0"


class EventLog:
    """The log at a store's URL: `async with EventLog(url) as log`."""

    def __init__(self, url: str) -> None:
        self.store = open_store(url)

    async def queues(self, tenant: str | None = None) -> list[QueueName]:
        """The queues there are."""
        return [record.queue for record in await self.store.queues(tenant)]

    async def page(self, queue: QueueName, after: str, limit: int = 1000) -> EventPage:
        """About `limit` events after a position (BEGINNING: from the oldest kept). An empty page: there is nothing more now."""
        return await self.store.read_events(queue, after=after, limit=limit)

    async def position(self, queue: QueueName, reader: str) -> str:
        """Where a reader stands; one that is new is registered at the oldest event kept."""
        position = await self.store.ack_events(queue, reader, None)
        if position is None:
            position = await self.store.ack_events(queue, reader, BEGINNING) or BEGINNING
        return position

    async def acknowledge(self, queue: QueueName, reader: str, position: str) -> None:
        """Everything up to `position` is stored elsewhere; the log need not keep it for this reader."""
        await self.store.ack_events(queue, reader, position)

    async def end(self, queue: QueueName) -> str:
        """The position the queue's log has reached."""
        return (await self.store.read_events(queue, after=None)).position

    async def ends(self, tenant: str, queue: str) -> tuple[str, ...]:
        """The positions the queue's log has reached, as they stand in ids of events: one per partition that is not empty."""
        position = await self.end(QueueName(tenant, queue))
        return tuple(place for place in position.split(",") if place.strip("0-"))

    async def counts(self, tenant: str, queue: str) -> dict[State, int]:
        """How many jobs stand where."""
        return await self.store.count(QueueName(tenant, queue))

    async def __aenter__(self) -> Self:
        await self.store.__aenter__()
        return self

    async def __aexit__(
        self, t: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.store.__aexit__(t, e, tb)
