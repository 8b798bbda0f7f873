"""The schedules of a store as the server fires them: within the limits of their tenants.

The server's own scheduler fires through this, and so do calls of clients. While a tenant has no
room for another job, its schedules do not fire: their times stay due, and `catch_up` decides about
them when there is room.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress

from msgspec.structs import replace

from jobq.access.quotas import TenantRules
from jobq.core.records.jobs import QueueName
from jobq.core.records.queues import Fire, ScheduleRecord
from jobq.core.rules import cron
from jobq.stores.base import Clock, Store


class TenantSchedules:
    """The `Schedules` of a scheduler (engine/scheduler.py)."""

    def __init__(self, store: Store, tenants: TenantRules, clock: Clock) -> None:
        self._store = store
        self._tenants = tenants
        self._clock = clock

    async def list_schedules(
        self, queue: QueueName | None = None, *, due: bool = False, limit: int = 100
    ) -> list[ScheduleRecord]:
        """With `due`, only schedules of tenants that have room for a job."""
        found = await self._store.list_schedules(queue, due=due, limit=limit)
        if not due or self._tenants.unlimited:
            return found
        rooms: dict[str, bool] = {}
        fit = [record for record in found if await self._fits(record, rooms)]
        if queue is None and len(found) == limit and len(fit) < limit:
            fit += await self._behind(fit, rooms, limit - len(fit))
        return fit

    async def _fits(self, record: ScheduleRecord, rooms: dict[str, bool]) -> bool:
        """Whether `fire` would fire it: its tenant has room, and may submit if it is late."""
        tenant = record.spec.queue.tenant
        if tenant not in rooms:
            rooms[tenant] = await self._tenants.has_room(self._store, tenant)
        late = record.next_ms is not None and record.next_ms < self._clock() - cron.GRACE_MS
        return rooms[tenant] and not (late and not self._tenants.may_submit(tenant))

    async def _behind(
        self, known: Sequence[ScheduleRecord], rooms: dict[str, bool], limit: int
    ) -> list[ScheduleRecord]:
        """Due schedules of tenants with room, queue by queue.

        Those of a full tenant stay due, and must not keep the scheduler from all others.
        """
        seen = {(record.spec.queue, record.spec.id) for record in known}
        found: list[ScheduleRecord] = []
        for record in await self._store.queues():
            if len(found) >= limit:
                break
            if rooms.get(record.queue.tenant, True):
                due = await self._store.list_schedules(record.queue, due=True, limit=limit)
                found += [
                    each
                    for each in due
                    if (each.spec.queue, each.spec.id) not in seen and await self._fits(each, rooms)
                ]
        return found[:limit]

    async def fire(self, fires: Sequence[Fire]) -> list[bool]:
        """Fire what quotas allow. False for the others: their times stay due."""
        if self._tenants.unlimited:
            return await self._store.fire(fires)
        late_ms = self._clock() - cron.GRACE_MS
        allowed, reservation = await self._tenants.admit_fires(self._store, fires, late_ms=late_ms)
        passed = list(compress(fires, allowed))
        made: dict[str, int] | None = None
        try:
            done = iter(await self._store.fire(passed) if passed else ())
            results = [fits and next(done) for fits in allowed]
            made = {}
            for fire, fired in zip(fires, results, strict=True):
                if fired and not fire.skipped:
                    made[fire.queue.tenant] = made.get(fire.queue.tenant, 0) + 1
        finally:
            reservation.end(made)
        return results

    def plan(self, record: ScheduleRecord, now_ms: int) -> list[Fire]:
        """`core.rules.cron.plan`, without times that are closer than the tenant's `min_interval`.

        There are such times if a schedule is older than the limit, or has a cron expression whose
        times are not equally far apart.
        """
        spec = record.spec
        least_ms = int(self._tenants.limits(spec.queue.tenant).min_interval * 1000)
        if spec.after_complete or not least_ms:
            return cron.plan(record, now_ms)
        if spec.every_ms is not None and spec.every_ms < least_ms:
            record = replace(record, spec=replace(spec, every_ms=least_ms))
        last_ms, fires = record.last_ms, []
        for fire in cron.plan(record, now_ms):
            if not fire.skipped and last_ms is not None and fire.at_ms - last_ms < least_ms:
                fire = replace(fire, skipped=True)
            elif not fire.skipped:
                last_ms = fire.at_ms
            fires.append(fire)
        return fires

    async def planned(self, asked: Sequence[Fire]) -> list[Fire | None]:
        """The fires of a caller as the server plans them. None for those that it does not."""
        planned: dict[tuple[QueueName, str, int], Fire] = {}
        for queue in {fire.queue for fire in asked}:
            for record in await self._store.list_schedules(queue, due=True, limit=_MAX_DUE):
                for fire in self.plan(record, max(self._clock(), record.next_ms or 0)):
                    planned[queue, fire.schedule, fire.at_ms] = fire
        return [planned.get((each.queue, each.schedule, each.at_ms)) for each in asked]


_MAX_DUE = 1_000
"""Due schedules of one queue that a caller can fire."""
