"""Reading jobs, queues and the event log, for one principal."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress

from jobq.access.guarded.rules import Guard, aligned, passed
from jobq.access.input_checks import check_word
from jobq.core.records.jobs import JobKey, JobRecord, QueueName
from jobq.core.records.queues import QueueRecord
from jobq.errors import QuotaExceeded
from jobq.stores.base import EventStore, ReadStore

MAX_READERS = 100
"""Readers of the event log of one queue that a tenant may register."""


class GuardedReads(Guard):
    """ReadStore and EventStore."""

    find = passed(ReadStore.find)
    skip = passed(ReadStore.skip)
    count = passed(ReadStore.count)
    stats = passed(ReadStore.stats)
    holds = passed(ReadStore.holds)
    find_lock = passed(ReadStore.find_lock)
    metrics = passed(ReadStore.metrics)
    read_events = passed(EventStore.read_events)
    readers = passed(EventStore.readers)
    remove_reader = passed(EventStore.remove_reader)

    async def get(self, jobs: Sequence[JobKey]) -> list[JobRecord | None]:
        """Jobs as they are now. None for jobs of other tenants."""
        self.check("get")
        own = [self._is_own(job.queue.tenant) for job in jobs]
        mine = list(compress(jobs, own))
        found = await self._store.get(mine) if mine else []
        return aligned(own, found, None)

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
