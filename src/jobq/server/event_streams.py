"""One stream of the events of several queues: first the stored ones, then new ones at once.

The stream listens to the logs of its queues and reads a log after a signal. Signals can be lost, so
it also reads all logs every few seconds.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from operator import attrgetter

from jobq.access.guard import GuardedStore
from jobq.client.deadline import LOOK_AGAIN
from jobq.client.gathered import RENEW_S, Gathered
from jobq.client.log_reader import BEGINNING
from jobq.core.checks import check_id
from jobq.core.records import QueueName, Topic
from jobq.errors import InvalidJob
from jobq.rpc import convert
from jobq.rpc.v1 import jobs_pb2 as pb
from jobq.server.stopping import Stopping

MAX_QUEUES = 100
"""Queues of one stream. Each costs a read every few seconds."""
_PAGE = 500
"""Events per message, about 150 kB."""
_ALIVE_S = 15.0
"""Seconds after which a stream without events says that it is alive. Proxies cut streams that are
idle for a minute."""


class EventStream:
    """The events of some queues for one caller."""

    def __init__(self, store: GuardedStore, stopping: Stopping, *, until_now: bool) -> None:
        self._store = store
        self._stopping = stopping
        self._until_now = until_now
        self._positions: dict[QueueName, str] = {}
        self._ends: dict[QueueName, str] = {}

    async def begin(self, queue: QueueName, asked: pb.EventsPosition) -> None:
        """Add a queue. InvalidJob if it is there already, or the request contradicts itself."""
        if queue in self._positions:
            raise InvalidJob(f"queue {queue.queue!r} is named twice")
        end = (await self._store.read_events(queue, after=None)).position
        self._ends[queue] = end
        if asked.reader:
            if asked.after:
                raise InvalidJob(f"queue {queue.queue!r}: give `after` or `reader`, not both")
            self._positions[queue] = await self._of_reader(queue, check_id(asked.reader, "reader"))
        else:
            self._positions[queue] = asked.after or end

    async def _of_reader(self, queue: QueueName, reader: str) -> str:
        found = await self._store.ack_events(queue, reader, None)
        if found is None:
            found = await self._store.ack_events(queue, reader, BEGINNING)
        return found or BEGINNING

    async def replies(self) -> AsyncIterator[pb.EventsResponse]:
        """All events, then new ones as they happen."""
        if self._until_now:
            for queue in self._positions:
                async for reply in self._kept(queue, self._ends[queue]):
                    yield reply
            return
        for queue, position in self._positions.items():
            yield pb.EventsResponse(queue=queue.queue, position=position)
        topics = [Topic("log", queue, None) for queue in self._positions]
        while True:
            renew = time.monotonic() + RENEW_S
            async with (
                self._store.listen(topics) as signals,
                Gathered(signals, attrgetter("queue")) as grown,
            ):
                async for reply in self._live(grown, renew):
                    yield reply

    async def _live(
        self, grown: Gathered[QueueName], renew: float
    ) -> AsyncIterator[pb.EventsResponse]:
        told = time.monotonic()
        changed: Sequence[QueueName] = list(self._positions)
        while time.monotonic() < renew:
            for queue in changed:
                async for reply in self._kept(queue, None):
                    told = time.monotonic()
                    yield reply
            self._stopping.check()
            if time.monotonic() - told >= _ALIVE_S:
                told = time.monotonic()
                for queue, position in self._positions.items():
                    yield pb.EventsResponse(queue=queue.queue, position=position)
            with self._stopping.wakes(grown.bell):
                found = await grown.next(LOOK_AGAIN)
            changed = [queue for queue in self._positions if found is None or queue in found]

    async def _kept(self, queue: QueueName, until: str | None) -> AsyncIterator[pb.EventsResponse]:
        """The events after the queue's position that are there now."""
        while True:
            page = await self._store.read_events(
                queue, after=self._positions[queue], limit=_PAGE, until=until
            )
            if not page.events:
                return
            self._positions[queue] = page.position
            yield pb.EventsResponse(
                queue=queue.queue,
                events=[convert.event(each) for each in page.events],
                position=page.position,
            )
