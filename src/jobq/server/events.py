"""One stream of the events of several queues: first the stored ones, then new ones at once."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator, Sequence

from jobq.access.guarded.store import GuardedStore
from jobq.client.deadlines import CHECK_AGAIN_S
from jobq.client.following import RENEW_S, Gathered
from jobq.client.log_reader import BEGINNING
from jobq.core.records.jobs import QueueName
from jobq.core.values.checks import check_id
from jobq.errors import InvalidJob
from jobq.operations.log import LogFollower
from jobq.rpc import convert
from jobq.rpc.v1 import jobs_pb2 as pb
from jobq.server.context import Stopping

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
        self._log = LogFollower(store, page=_PAGE)
        self._stopping = stopping
        self._until_now = until_now

    async def begin(self, queue: QueueName, asked: pb.EventsPosition) -> None:
        """Add a queue. InvalidJob if it is there already, or the request contradicts itself."""
        if queue in self._log.positions:
            raise InvalidJob(f"queue {queue.queue!r} is named twice")
        after = asked.after or None
        if asked.reader:
            if after:
                raise InvalidJob(f"queue {queue.queue!r}: give `after` or `reader`, not both")
            after = await self._of_reader(queue, check_id(asked.reader, "reader"))
        await self._log.begin(queue, after, until_now=self._until_now)

    async def _of_reader(self, queue: QueueName, reader: str) -> str:
        found = await self._store.ack_events(queue, reader, None)
        if found is None:
            found = await self._store.ack_events(queue, reader, BEGINNING)
        return found or BEGINNING

    async def replies(self) -> AsyncIterator[pb.EventsResponse]:
        """All events, then new ones as they happen."""
        if self._until_now:
            for queue in self._log.positions:
                async for reply in self._kept(queue):
                    yield reply
            return
        for reply in self._positions():
            yield reply
        while True:
            renew = time.monotonic() + RENEW_S
            async with self._log.listening() as grown:
                async for reply in self._live(grown, renew):
                    yield reply

    async def _live(
        self, grown: Gathered[QueueName], renew: float
    ) -> AsyncIterator[pb.EventsResponse]:
        sent_at = time.monotonic()
        changed: Sequence[QueueName] = list(self._log.positions)
        while time.monotonic() < renew:
            for queue in changed:
                async for reply in self._kept(queue):
                    sent_at = time.monotonic()
                    yield reply
            self._stopping.check()
            if time.monotonic() - sent_at >= _ALIVE_S:
                sent_at = time.monotonic()
                for reply in self._positions():
                    yield reply
            with self._stopping.wakes(grown.bell):
                found = await grown.next(CHECK_AGAIN_S)
            changed = [each for each in self._log.positions if found is None or each in found]

    def _positions(self) -> Iterator[pb.EventsResponse]:
        for queue, position in self._log.positions.items():
            yield pb.EventsResponse(queue=queue.queue, position=position)

    async def _kept(self, queue: QueueName) -> AsyncIterator[pb.EventsResponse]:
        """The events after the queue's position that are there now."""
        async for page in self._log.kept(queue):
            yield pb.EventsResponse(
                queue=queue.queue,
                events=[convert.event(each) for each in page.events],
                position=page.position,
            )
