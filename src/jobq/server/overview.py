"""What is gathered over all queues of a tenant. Its cost follows the number of queues, not jobs."""

from __future__ import annotations

from collections import Counter

from jobq.access.guard import GuardedStore
from jobq.access.quotas import TenantRules
from jobq.core.bounds import COUNTED
from jobq.core.states import ENDED, State
from jobq.operations import schedules, workers
from jobq.rpc.v1 import admin_pb2 as pb


class Overview:
    """Sums over queues."""

    def __init__(self, rules: TenantRules) -> None:
        self._rules = rules

    async def tenant(self, store: GuardedStore, tenant: str) -> pb.Tenant:
        """What a tenant uses, and what it may use."""
        records = await store.queues(tenant)
        names = [record.queue for record in records]
        counts: Counter[State] = Counter()
        for record in records:
            counts.update(await store.count(record.queue))
        limits = self._rules.limits(tenant)
        return pb.Tenant(
            tenant=tenant,
            queues=len(records),
            schedules=len(await schedules.of_queues(store, names)),
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
        return pb.GetStatusResponse(
            store=store.url.partition(":")[0],
            queues=len(records),
            counts=counts,
            workers=len(await workers.of_tenant(store, tenant)),
        )
