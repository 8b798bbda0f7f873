"""What is gathered over all queues of a tenant. Its cost follows the number of queues, not jobs."""

from __future__ import annotations

from collections import Counter

from jobq.access.guard import GuardedStore
from jobq.access.quotas import TenantRules
from jobq.core.bounds import COUNTED
from jobq.core.queues import QueueRecord, ScheduleRecord
from jobq.core.records import QueueName
from jobq.core.states import ENDED, State
from jobq.rpc.v1 import admin_pb2 as pb

_SCHEDULES = 10_000
"""Schedules that are counted per queue, as many as `Queue.schedules()` lists."""


class Overview:
    """Sums over queues."""

    def __init__(self, rules: TenantRules) -> None:
        self._rules = rules

    async def find(self, store: GuardedStore, queue: QueueName) -> QueueRecord | None:
        """What is stored about a queue. None if there is no such queue."""
        for record in await store.queues(queue.tenant):
            if record.queue == queue:
                return record
        return None

    async def schedules(self, store: GuardedStore, tenant: str, limit: int) -> list[ScheduleRecord]:
        """Schedules of all queues of a tenant."""
        found: list[ScheduleRecord] = []
        for record in await store.queues(tenant):
            if len(found) >= limit:
                break
            found += await store.list_schedules(record.queue, limit=limit - len(found))
        return found

    async def tenant(self, store: GuardedStore, tenant: str) -> pb.Tenant:
        """What a tenant uses, and what it may use."""
        records = await store.queues(tenant)
        counts: Counter[State] = Counter()
        for record in records:
            counts.update(await store.count(record.queue))
        limits = self._rules.limits(tenant)
        return pb.Tenant(
            tenant=tenant,
            queues=len(records),
            schedules=len(await self.schedules(store, tenant, _SCHEDULES)),
            waiting_jobs=sum(counts[state] for state in COUNTED),
            active_jobs=counts[State.ACTIVE],
            ended_jobs=sum(counts[state] for state in ENDED),
            max_queues=limits.max_queues,
            max_schedules=limits.max_schedules,
            max_waiting_jobs=limits.max_waiting,
            max_active_jobs=limits.max_active,
            max_stored_jobs=limits.max_stored,
            max_payload_bytes=limits.max_payload,
            submit_rate=limits.submit_rate,
            max_priority=limits.max_priority,
            min_interval_ms=round(limits.min_interval * 1000),
        )

    async def status(self, store: GuardedStore, tenant: str | None) -> pb.GetStatusResponse:
        """The store, its queues in total, and its workers. `tenant` None: of all tenants."""
        records = await store.queues(tenant)
        counts: Counter[str] = Counter()
        for record in records:
            for state, number in (await store.count(record.queue)).items():
                counts[state.value] += number
        workers = await store.workers()
        if tenant is not None:
            workers = [
                each for each in workers if any(name.tenant == tenant for name in each.queues)
            ]
        return pb.GetStatusResponse(
            store=store.url.partition(":")[0],
            queues=len(records),
            counts=counts,
            workers=len(workers),
        )
