"""Follows the event logs of queues: what is there, and what is added as it happens.

A follower listens to the logs of its queues and reads a log after a signal. Signals can be lost, so
its owner also reads all logs every few seconds.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from operator import attrgetter

from jobq.client.following import Gathered
from jobq.core.records.events import EventPage
from jobq.core.records.jobs import QueueName, Topic
from jobq.stores.base import Store


class LogFollower:
    """Positions in the logs of some queues. `page` is about how many events one read returns."""

    def __init__(self, store: Store, *, page: int = 1000) -> None:
        self.store = store
        self._page = page
        self._ends: dict[QueueName, str] = {}
        self.positions: dict[QueueName, str] = {}

    async def begin(self, queue: QueueName, after: str | None, *, until_now: bool = False) -> None:
        """Add a queue, from a position on; None: from now on. `until_now`: no later events."""
        if after is None or until_now:
            end = (await self.store.read_events(queue, after=None)).position
            after = end if after is None else after
            if until_now:
                self._ends[queue] = end
        self.positions[queue] = after

    async def read(self, queue: QueueName) -> EventPage:
        """The next page of a log. It has no events if there are no new ones."""
        page = await self.store.read_events(
            queue, after=self.positions[queue], limit=self._page, until=self._ends.get(queue)
        )
        if page.events:
            self.positions[queue] = page.position
        return page

    async def kept(self, queue: QueueName) -> AsyncIterator[EventPage]:
        """The pages of a log that are there now."""
        while (page := await self.read(queue)).events:
            yield page

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[Gathered[QueueName]]:
        """Listen to the logs. `next` of the result waits and returns the queues that have grown.

        Read all logs after this begins: nothing is said about what was added before."""
        topics = [Topic("log", queue, None) for queue in self.positions]
        async with (
            self.store.listen(topics) as signals,
            Gathered(signals, attrgetter("queue")) as grown,
        ):
            yield grown
