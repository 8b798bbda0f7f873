"""What people and their tools do, for one principal."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress

from msgspec.structs import replace

from jobq.core.commands import (
    Altered,
    AnyCommand,
    Reprioritise,
    SendSignal,
    Update,
)
from jobq.core.new_jobs import check_command, check_queue, check_schedule
from jobq.core.queues import (
    Fire,
    Limits,
    QueueConfig,
    QueueRecord,
    ScheduleRecord,
    ScheduleSpec,
)
from jobq.core.records import (
    JobRecord,
    QueueName,
)
from jobq.core.states import State
from jobq.server.guarded.rules import Guard, bounded, in_place
from jobq.server.specs import check_span


class GuardedOperators(Guard):
    """OperatorStore and ScheduleStore."""

    async def alter(self, commands: Sequence[AnyCommand]) -> list[Altered]:
        """Carry out commands. Jobs of other tenants are missing. Removing a job needs admin."""
        self.check("alter")
        own = [self._is_own(each.job.queue.tenant) for each in commands]
        mine = list(compress(commands, own))
        if any(each.__struct_config__.tag == "remove" for each in mine):
            self.check("alter that removes a job")
        mine = [self._checked_command(each) for each in mine]
        named = [
            replace(each, actor=self._actor(each.actor)) if self.principal.subject else each
            for each in mine
        ]
        done = await self._store.alter(named) if named else []
        return in_place(own, done, "missing")

    def _checked_command(self, command: AnyCommand) -> AnyCommand:
        command = check_command(command)
        tenant = check_queue(command.job.queue).tenant
        if isinstance(command, Reprioritise):
            self._tenants.check_priority(tenant, command.priority)
        elif isinstance(command, Update):
            self._tenants.check_payload(tenant, len(command.payload))
        elif isinstance(command, SendSignal):
            self._tenants.check_payload(tenant, len(command.value))
        return command

    async def declare(self, queue: QueueName, config: QueueConfig) -> QueueRecord:
        """Store what code declares."""
        self.check("declare")
        self._own(queue)
        if config.dead_letters is not None:
            check_queue(QueueName(queue.tenant, config.dead_letters))
        await self._tenants.admit_queues(self._store, [queue])
        return await self._store.declare(queue, config)

    async def set_limits(
        self,
        queue: QueueName,
        limits: Limits | None,
        *,
        key: str | None = None,
        actor: str | None = None,
    ) -> None:
        """Change limits."""
        self.check("set_limits")
        self._own(queue)
        await self._tenants.admit_queues(self._store, [queue])
        await self._store.set_limits(queue, limits, key=key, actor=self._actor(actor))

    async def pause(self, queue: QueueName, *, actor: str | None = None) -> None:
        """Stop claims."""
        self.check("pause")
        self._own(queue)
        await self._tenants.admit_queues(self._store, [queue])
        await self._store.pause(queue, actor=self._actor(actor))

    async def resume(self, queue: QueueName, *, actor: str | None = None) -> None:
        """Allow claims again."""
        self.check("resume")
        self._own(queue)
        await self._tenants.admit_queues(self._store, [queue])
        await self._store.resume(queue, actor=self._actor(actor))

    async def hold(
        self, queue: QueueName, ms: int, key: str | None = None, *, actor: str | None = None
    ) -> None:
        """Stop claims for a while."""
        self.check("hold")
        self._own(queue)
        check_span(ms, "ms")
        await self._tenants.admit_queues(self._store, [queue])
        await self._store.hold(queue, ms, key, actor=self._actor(actor))

    async def release_hold(
        self, queue: QueueName, key: str | None = None, *, actor: str | None = None
    ) -> bool:
        """Lift a hold."""
        self.check("release_hold")
        self._own(queue)
        return await self._store.release_hold(queue, key, actor=self._actor(actor))

    async def release_lock(
        self, queue: QueueName, lock: str, *, job: str | None = None, actor: str | None = None
    ) -> bool:
        """Release a unique lock."""
        self.check("release_lock")
        self._own(queue)
        return await self._store.release_lock(queue, lock, job=job, actor=self._actor(actor))

    async def purge_pending(
        self,
        queue: QueueName,
        *,
        delayed: bool = False,
        limit: int = 1000,
        actor: str | None = None,
    ) -> int:
        """Cancel waiting jobs."""
        self.check("purge_pending")
        self._own(queue)
        return await self._store.purge_pending(
            queue, delayed=delayed, limit=bounded(limit), actor=self._actor(actor)
        )

    async def purge_ended(
        self,
        queue: QueueName,
        state: State,
        *,
        older_than_ms: int = 0,
        limit: int = 1000,
        actor: str | None = None,
    ) -> int:
        """Remove records of ended jobs."""
        self.check("purge_ended")
        self._own(queue)
        return await self._store.purge_ended(
            queue,
            state,
            older_than_ms=older_than_ms,
            limit=bounded(limit),
            actor=self._actor(actor),
        )

    async def obliterate(
        self, queue: QueueName, *, force: bool = False, limit: int = 1000, actor: str | None = None
    ) -> bool:
        """Remove a queue."""
        self.check("obliterate")
        self._own(queue)
        return await self._store.obliterate(
            queue, force=force, limit=bounded(limit), actor=self._actor(actor)
        )

    async def restore(self, records: Sequence[JobRecord]) -> list[bool]:
        """Store failed jobs of another store."""
        self.check("restore")
        for record in records:
            self._own(record.queue)
            self._own_all(job.queue for job in (*record.parents, *record.children))
        await self._tenants.admit_queues(self._store, {record.queue for record in records})
        return await self._store.restore(records)

    async def put_schedule(
        self, spec: ScheduleSpec, *, next_ms: int | None, actor: str | None = None
    ) -> ScheduleRecord:
        """Store a schedule."""
        self.check("put_schedule")
        self._own(spec.queue)
        spec = check_schedule(spec, next_ms)
        if not self._tenants.unlimited:
            await self._tenants.admit_schedule(self._store, spec)
        return await self._store.put_schedule(spec, next_ms=next_ms, actor=self._actor(actor))

    async def drop_schedule(self, queue: QueueName, id: str, *, actor: str | None = None) -> bool:
        """Remove a schedule."""
        self.check("drop_schedule")
        self._own(queue)
        return await self._store.drop_schedule(queue, id, actor=self._actor(actor))

    async def pause_schedule(
        self, queue: QueueName, id: str, *, paused: bool, actor: str | None = None
    ) -> Altered:
        """Pause or resume a schedule."""
        self.check("pause_schedule")
        self._own(queue)
        return await self._store.pause_schedule(queue, id, paused=paused, actor=self._actor(actor))

    async def list_schedules(
        self, queue: QueueName | None = None, *, due: bool = False, limit: int = 100
    ) -> list[ScheduleRecord]:
        """Schedules of a queue, or of all queues of the tenant.

        A caller of one tenant finds nothing due: the server fires schedules.
        """
        self.check("list_schedules")
        limit = bounded(limit)
        if queue is not None:
            self._own(queue)
            return await self._store.list_schedules(queue, due=due, limit=limit)
        if self.principal.tenant is None:
            return await self._store.list_schedules(due=due, limit=limit)
        found: list[ScheduleRecord] = []
        if due:
            return found
        for record in await self._store.queues(self.principal.tenant):
            if len(found) >= limit:
                break
            found += await self._store.list_schedules(record.queue, limit=limit - len(found))
        return found

    async def fire(self, fires: Sequence[Fire]) -> list[bool]:
        """Make the jobs of due schedules."""
        self.check("fire")
        self._own_all(each.queue for each in fires)
        return await self._store.fire(fires)
