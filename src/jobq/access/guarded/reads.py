"""Reading jobs, queues and the event log, for one principal."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress

from jobq.access.guarded.rules import Guard, bounded, in_place
from jobq.access.specs import check_word
from jobq.core.event_records import EventPage
from jobq.core.holds import MAX_LISTED
from jobq.core.locks import LockRecord
from jobq.core.queues import (
    HoldsRecord,
    MinuteRecord,
    QueueRecord,
    StatsRecord,
)
from jobq.core.records import (
    Filter,
    JobKey,
    JobRecord,
    Page,
    QueueName,
)
from jobq.core.states import State
from jobq.errors import QuotaExceeded

MAX_READERS = 100
"""Readers of the event log of one queue that a tenant may register."""


class GuardedReads(Guard):
    """ReadStore and EventStore."""

    async def get(self, jobs: Sequence[JobKey]) -> list[JobRecord | None]:
        """Jobs as they are now. None for jobs of other tenants."""
        self.check("get")
        own = [self._is_own(job.queue.tenant) for job in jobs]
        mine = list(compress(jobs, own))
        found = await self._store.get(mine) if mine else []
        return in_place(own, found, None)

    async def find(
        self,
        filter: Filter,
        *,
        cursor: str | None = None,
        limit: int = 100,
        until: str | None = None,
    ) -> Page:
        """Jobs of a queue."""
        self.check("find")
        self._own(filter.queue)
        return await self._store.find(filter, cursor=cursor, limit=bounded(limit), until=until)

    async def skip(
        self, filter: Filter, *, cursor: str | None = None, count: int = 1000
    ) -> str | None:
        """A cursor further on in a listing."""
        self.check("skip")
        self._own(filter.queue)
        return await self._store.skip(filter, cursor=cursor, count=bounded(count))

    async def count(self, queue: QueueName) -> dict[State, int]:
        """How many jobs are in each state."""
        self.check("count")
        self._own(queue)
        return await self._store.count(queue)

    async def stats(self, queue: QueueName) -> StatsRecord:
        """The queue at a glance."""
        self.check("stats")
        self._own(queue)
        return await self._store.stats(queue)

    async def holds(self, queue: QueueName, *, limit: int = MAX_LISTED) -> HoldsRecord:
        """The holds in force."""
        self.check("holds")
        self._own(queue)
        return await self._store.holds(queue, limit=bounded(limit))

    async def find_lock(self, queue: QueueName, lock: str) -> LockRecord | None:
        """Who holds a unique lock."""
        self.check("find_lock")
        self._own(queue)
        return await self._store.find_lock(queue, lock)

    async def metrics(self, queue: QueueName, *, minutes: int = 60) -> list[MinuteRecord]:
        """The last minutes."""
        self.check("metrics")
        self._own(queue)
        return await self._store.metrics(queue, minutes=bounded(minutes))

    async def logs(self, job: JobKey) -> list[str]:
        """A job's log lines. A job of another tenant has none."""
        self.check("logs")
        return await self._store.logs(job) if self._is_own(job.queue.tenant) else []

    async def queues(self, tenant: str | None = None) -> list[QueueRecord]:
        """All queues that the caller may see, or those of one tenant."""
        self.check("queues")
        mine = self.principal.tenant
        if mine is not None and tenant not in (None, mine):
            return []
        return await self._store.queues(tenant if mine is None else mine)

    # ── the event log ─────────────────────────────────────────────────────────────────────────────

    async def read_events(
        self,
        queue: QueueName,
        *,
        after: str | None = None,
        limit: int = 1000,
        until: str | None = None,
    ) -> EventPage:
        """Events after a position."""
        self.check("read_events")
        self._own(queue)
        return await self._store.read_events(queue, after=after, limit=bounded(limit), until=until)

    async def ack_events(self, queue: QueueName, reader: str, position: str | None) -> str | None:
        """The position of a reader. Moving a reader needs admin."""
        self.check("ack_events")
        if position is not None:
            self.check("ack_events with a position")
        self._own(queue)
        check_word(reader, "reader")
        await self._tenants.admit_queues(self._store, [queue])
        if position is not None and self.principal.tenant is not None:
            readers = await self._store.readers(queue)
            if reader not in readers and len(readers) >= MAX_READERS:
                raise QuotaExceeded(
                    f"queue {queue.queue!r} has {MAX_READERS} readers, as many as it may have: "
                    "remove one first"
                )
        return await self._store.ack_events(queue, reader, position)

    async def readers(self, queue: QueueName) -> dict[str, str]:
        """The registered readers."""
        self.check("readers")
        self._own(queue)
        return await self._store.readers(queue)

    async def remove_reader(self, queue: QueueName, reader: str) -> bool:
        """Remove a reader."""
        self.check("remove_reader")
        self._own(queue)
        return await self._store.remove_reader(queue, reader)
