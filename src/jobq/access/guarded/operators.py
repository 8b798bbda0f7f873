"""What people and their tools do, for one principal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import compress

from msgspec.structs import replace

from jobq.access.guarded.rules import ADMIN, Guard, aligned, bounded, passed
from jobq.access.input_checks import check_span
from jobq.access.schedules import TenantSchedules
from jobq.core.records.commands import (
    Altered,
    AnyCommand,
    Cancel,
    Reprioritise,
    Rerun,
    Revive,
    SendSignal,
    Update,
)
from jobq.core.records.failures import MAX_ERRORS, bounded_failure
from jobq.core.records.jobs import JobRecord, QueueName
from jobq.core.records.queues import (
    Fire,
    Limits,
    QueueConfig,
    QueueRecord,
    ScheduleRecord,
    ScheduleSpec,
)
from jobq.core.rules.cron import first_time
from jobq.core.rules.new_jobs import check_command, check_queue, check_schedule
from jobq.core.rules.options import MAX_ORIGIN
from jobq.core.rules.waits import CHILD
from jobq.core.values.checks import (
    MAX_ACTOR_LENGTH,
    MAX_STEPS,
    check_key,
    check_short_name,
    check_step_size,
    check_task_name,
)
from jobq.core.values.meta import check_event_names
from jobq.errors import InvalidJob, QuotaExceeded
from jobq.stores.base import OperatorStore, ScheduleStore

MAX_NAMED = 10_000
"""Keys or tasks that a queue may store settings of."""
_AGAIN = (Rerun, Revive)
"""Commands that make an ended job unfinished again."""


class GuardedOperators(Guard):
    """OperatorStore and ScheduleStore."""

    pause = passed(OperatorStore.pause, makes_queue=True)
    resume = passed(OperatorStore.resume, makes_queue=True)
    release_hold = passed(OperatorStore.release_hold)
    release_lock = passed(OperatorStore.release_lock)
    purge_pending = passed(OperatorStore.purge_pending)
    purge_ended = passed(OperatorStore.purge_ended)
    drop_schedule = passed(ScheduleStore.drop_schedule)
    pause_schedule = passed(ScheduleStore.pause_schedule)

    async def alter(self, commands: Sequence[AnyCommand]) -> list[Altered]:
        """Carry out commands. Jobs of other tenants are missing. Removing a job needs admin."""
        self.check("alter")
        own = [self._is_own(each.job.queue.tenant) for each in commands]
        mine = list(compress(commands, own))
        if any(each.__struct_config__.tag == "remove" for each in mine):
            self.check("alter that removes a job")
        mine = [self._checked_command(each) for each in mine]
        by = self.principal.subject
        named = [
            replace(each, actor=self._actor(each.actor)) if each.actor or by else each
            for each in mine
        ]
        done = await self._alter(named) if named else []
        return aligned(own, done, "missing")

    async def _alter(self, commands: Sequence[AnyCommand]) -> list[Altered]:
        """Carry out commands. Those that run jobs again need places for them."""
        if self._tenants.unlimited or not any(isinstance(each, _AGAIN) for each in commands):
            return await self._store.alter(commands)
        reservation = await self._tenants.admit_reruns(self._store, commands)
        again: Counter[str] | None = None
        try:
            done = await self._store.alter(commands)
            again = Counter(
                command.job.queue.tenant
                for command, result in zip(commands, done, strict=True)
                if isinstance(command, _AGAIN) and result == "done"
            )
        finally:
            reservation.end(again)
        return done

    def _checked_command(self, command: AnyCommand) -> AnyCommand:
        command = check_command(command)
        tenant = check_queue(command.job.queue).tenant
        if isinstance(command, Cancel):
            check_short_name(command.reason, "reason", MAX_ACTOR_LENGTH)
        elif isinstance(command, Reprioritise):
            self._tenants.check_priority(tenant, command.priority)
        elif isinstance(command, Update):
            self._tenants.check_payload(tenant, len(command.payload))
        elif isinstance(command, SendSignal):
            # A running job notes its children as signals to itself: their queue and id, in UTF-8.
            if command.name.startswith(CHILD) and len(command.value) > 4 * MAX_ORIGIN:
                raise InvalidJob("the note of a child is longer than a queue and an id")
            self._tenants.check_payload(tenant, len(command.value))
        return command

    async def declare(self, queue: QueueName, config: QueueConfig) -> QueueRecord:
        """Store what code declares."""
        self.check("declare")
        self._own(queue)
        made = [queue]
        if config.dead_letters is not None:
            made.append(QueueName(queue.tenant, config.dead_letters))
            check_queue(made[-1])
        if config.event_meta is not None:
            check_event_names(config.event_meta, error=InvalidJob)
        if config.max_stalls:
            for name in config.max_stalls:
                check_task_name(name)
            known = await self._record(queue)
            names = config.max_stalls.keys() | (known.max_stalls.keys() if known else ())
            _check_number(len(names), "tasks with max_stalls")
        await self._tenants.admit_queues(self._store, made)
        return await self._store.declare(queue, config)

    async def _record(self, queue: QueueName) -> QueueRecord | None:
        """What is stored about a queue."""
        found = await self._store.queues(queue.tenant)
        return next((record for record in found if record.queue == queue), None)

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
        if key is not None:
            check_key(key)
            known = await self._record(queue)
            keys = known.limits.keys.keys() if known else frozenset[str]()
            _check_number(len(keys | {key}), "keys with limits of their own")
        await self._tenants.admit_queues(self._store, [queue])
        await self._store.set_limits(queue, limits, key=key, actor=self._actor(actor))

    async def hold(
        self, queue: QueueName, ms: int, key: str | None = None, *, actor: str | None = None
    ) -> None:
        """Stop claims for a while."""
        self.check("hold")
        self._own(queue)
        check_span(ms, "ms")
        if key is not None:
            check_key(key)
            held = (await self._store.holds(queue, limit=MAX_NAMED + 1)).keys
            _check_number(len(held.keys() | {key}), "held keys")
        await self._tenants.admit_queues(self._store, [queue])
        await self._store.hold(queue, ms, key, actor=self._actor(actor))

    async def obliterate(
        self, queue: QueueName, *, force: bool = False, limit: int = 1000, actor: str | None = None
    ) -> bool:
        """Remove a queue."""
        self.check("obliterate")
        self._own(queue)
        self._tenants.forget(queue)
        return await self._store.obliterate(
            queue, force=force, limit=bounded(limit), actor=self._actor(actor)
        )

    async def restore(self, records: Sequence[JobRecord]) -> list[bool]:
        """Store failed jobs of another store."""
        self.check("restore")
        for record in records:
            self._own(record.queue)
            self._own_all(job.queue for job in (*record.parents, *record.children))
            for data in (record.payload, record.result, record.progress, record.saved):
                self._tenants.check_payload(record.queue.tenant, len(data or b""))
        await self._tenants.admit_queues(self._store, {record.queue for record in records})
        async with self._tenants.restoring(self._store, records) as stored:
            stored += await self._store.restore([_bounded(record) for record in records])
        return stored

    async def put_schedule(
        self, spec: ScheduleSpec, *, next_ms: int | None, actor: str | None = None
    ) -> ScheduleRecord:
        """Store a schedule. Its first time is the server's, unless an admin moves a schedule."""
        self.check("put_schedule")
        self._own(spec.queue)
        spec = check_schedule(spec, next_ms)
        if not self.principal.may(ADMIN):
            next_ms = first_time(spec, self._now_ms())
        await self._tenants.admit_schedule(self._store, spec, self._now_ms())
        return await self._store.put_schedule(spec, next_ms=next_ms, actor=self._actor(actor))

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
        """Make the jobs of due schedules, within the quotas of their tenants.

        The server plans the times: a fire that is not due now, or whose time is another, is not
        carried out. Only an operator of all tenants may run a scheduler of its own.
        """
        self.check("fire")
        self._own_all(each.queue for each in fires)
        schedules = TenantSchedules(self._store, self._tenants, self._now_ms)
        if self.principal.tenant is None and self.principal.may(ADMIN):
            return await schedules.fire(fires)
        planned = await schedules.planned(fires)
        found = [fire for fire in planned if fire is not None]
        done = await schedules.fire(found) if found else []
        return aligned([fire is not None for fire in planned], done, False)


def _check_number(number: int, what: str) -> None:
    if number > MAX_NAMED:
        raise QuotaExceeded(f"a queue may have {MAX_NAMED:,} {what}, and no more")


def _bounded(record: JobRecord) -> JobRecord:
    """The record, with no more about its failures than a run may report."""
    if len(record.steps) > MAX_STEPS:
        raise InvalidJob(f"job {record.id} has more than {MAX_STEPS:,} steps")
    check_step_size(record.id, sum(len(name.encode()) + len(data) for name, data in record.steps))
    return replace(
        record,
        failure=None if record.failure is None else bounded_failure(record.failure),
        errors=tuple(map(bounded_failure, record.errors[-MAX_ERRORS:])),
    )
