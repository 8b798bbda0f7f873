"""What each tenant may use: how much may wait and run, how fast it may submit, how urgent its jobs
are.

Jobs that come back (a retry, a stall, a release) and dead letters count and are never refused:
each takes the place of a job that was unfinished before. So unfinished jobs are at most
`max_waiting` and `max_active` together, because each new one and each rerun is compared with that
sum.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import (
    AsyncIterator,
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from itertools import pairwise

import msgspec

from jobq.access.usage import NO_BOUND, NO_LIMITS, TenantLimits, Usage
from jobq.core.records.commands import AnyCommand, Rerun, Revive
from jobq.core.records.jobs import (
    Claim,
    JobKey,
    JobRecord,
    JobSpec,
    LeaseRef,
    QueueName,
    Settled,
)
from jobq.core.records.queues import Fire, ScheduleSpec
from jobq.core.records.states import State
from jobq.core.rules.cron import first_time, next_after
from jobq.core.rules.locks import on_held_lock, standing
from jobq.errors import InvalidJob, PayloadTooLarge, QuotaExceeded
from jobq.stores.base import Store

ROOM_MS = 1_000
"""Milliseconds after which a worker asks again that got no job because of `max_active`. It is woken
earlier if a job of the tenant ends at this server."""
MAX_ELECTIONS = 100
"""Elections of one tenant at one server. A store keeps the name of each."""
_CRON_TIMES = 10
"""Times of a new cron schedule whose distances are compared with `min_interval`."""
_MAX_SCHEDULES = 10_000
"""Schedules of one queue that are looked through for one."""
_MAX_TENANTS = 10_000
"""Tenants whose usage is remembered. It is counted again when it is needed."""


class TenantRules:
    """The limits of all tenants, and what each of them uses."""

    def __init__(
        self,
        default: TenantLimits = NO_LIMITS,
        tenants: Mapping[str, TenantLimits] | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._default = default
        self._tenants = dict(tenants or {})
        self._clock = clock
        self._usage: dict[str, Usage] = {}
        every = (default, *self._tenants.values())
        self.unlimited = all(limits == NO_LIMITS for limits in every)
        self.bounds_active = any(limits.max_active is not None for limits in every)
        """Whether a tenant has `max_active`, so that leases are counted."""

    def limits(self, tenant: str) -> TenantLimits:
        """The limits of a tenant."""
        return self._tenants.get(tenant, self._default)

    def _usage_of(self, tenant: str) -> Usage:
        found = self._usage.get(tenant)
        if found is None:
            if len(self._usage) >= _MAX_TENANTS:
                del self._usage[next(iter(self._usage))]
            found = self._usage[tenant] = Usage(tenant, self._clock)
        return found

    # ── new jobs ──

    async def admit(
        self, store: Store, specs: Sequence[JobSpec], *, flow: str | None = None
    ) -> Reservation:
        """Reserve room for new jobs. QuotaExceeded, InvalidJob or PayloadTooLarge if not."""
        reservation = Reservation()
        try:
            for tenant, own in self._by_tenant(specs):
                await self._admit(store, tenant, own, flow, reservation)
        except BaseException:
            # What was staged of a flow still counts: the store knows nothing of this refusal.
            reservation.end({})
            raise
        return reservation

    async def _admit(
        self,
        store: Store,
        tenant: str,
        specs: Sequence[JobSpec],
        flow: str | None,
        reservation: Reservation,
    ) -> None:
        limits, usage = self.limits(tenant), self._usage_of(tenant)
        for spec in specs:
            _check_priority(limits, tenant, spec.priority)
            _check_payload(limits, tenant, len(spec.payload))
        await usage.check_queues(store, limits, {spec.queue.queue for spec in specs})
        usage.check_rate(limits, staged=flow is not None and usage.is_staged(flow))
        await usage.reserve(store, limits, len(specs), lambda most: _new(store, specs, most))
        reservation.take(usage, len(specs))
        usage.charge(limits, len(specs))

    def staged(self, specs: Sequence[JobSpec], flow: str, *, last: bool) -> None:
        """These jobs of a flow are stored. They wait, but stores count them after the last ones."""
        for tenant, own in self._by_tenant(specs):
            self._usage_of(tenant).stage(flow, len(own), last=last)

    def refused(self, specs: Sequence[JobSpec], flow: str | None) -> None:
        """The store has refused a call, and so discarded its flow."""
        for tenant, _ in self._by_tenant(specs) if flow is not None else ():
            self._usage_of(tenant).unstage(flow or "")

    def _by_tenant(self, specs: Sequence[JobSpec]) -> list[tuple[str, list[JobSpec]]]:
        found: dict[str, list[JobSpec]] = {}
        for spec in specs:
            found.setdefault(spec.queue.tenant, []).append(spec)
        return [(tenant, own) for tenant, own in found.items() if self.limits(tenant) != NO_LIMITS]

    async def admit_reruns(self, store: Store, commands: Sequence[AnyCommand]) -> Reservation:
        """Reserve room for the jobs that these commands run again. QuotaExceeded if not."""
        again: dict[str, list[JobKey]] = {}
        for command in commands:
            if isinstance(command, Rerun | Revive):
                again.setdefault(command.job.queue.tenant, []).append(command.job)
        reservation = Reservation()
        try:
            for tenant, jobs in again.items():
                limits, usage = self.limits(tenant), self._usage_of(tenant)

                async def ended(_: int, jobs: Sequence[JobKey] = jobs) -> int:
                    found = await store.get(jobs)
                    return sum(record is not None and record.state.ended for record in found)

                await usage.reserve(store, limits, len(jobs), ended, again=True)
                reservation.take(usage, len(jobs))
        except BaseException:
            reservation.end({})
            raise
        return reservation

    @contextlib.asynccontextmanager
    async def restoring(
        self, store: Store, records: Sequence[JobRecord]
    ) -> AsyncIterator[list[bool]]:
        """Inside the context, quotas count these ended jobs as being stored. It fills in which of
        them are. QuotaExceeded if they are more than the tenant may store.
        """
        done: list[bool] = []
        reservation, jobs = Reservation(), Counter(record.queue.tenant for record in records)
        stored: Counter[str] | None = Counter()
        try:
            for tenant, count in jobs.items():
                if (most := self.limits(tenant).max_stored) is not None:
                    limits, usage = TenantLimits(max_stored=most), self._usage_of(tenant)

                    async def all_of_them(_: int, count: int = count) -> int:
                        return count

                    await usage.reserve(store, limits, count, all_of_them)
                    reservation.take(usage, count)
            stored = None
            yield done
            stored = Counter(
                record.queue.tenant for record, new in zip(records, done, strict=True) if new
            )
        finally:
            reservation.end(stored)

    # ── schedules ──

    async def has_room(self, store: Store, tenant: str) -> bool:
        """Whether schedules of the tenant may fire. If not, their times stay due."""
        limits = self.limits(tenant)
        return limits == NO_LIMITS or await self._usage_of(tenant).room(store, limits) > 0

    def may_submit(self, tenant: str) -> bool:
        """Whether the submit rate of the tenant allows a job now."""
        limits = self.limits(tenant)
        return limits == NO_LIMITS or self._usage_of(tenant).may_submit(limits)

    async def admit_fires(
        self, store: Store, fires: Sequence[Fire], *, late_ms: int
    ) -> tuple[list[bool], Reservation]:
        """Which of these fires the quotas of their tenants allow, and the room for their jobs.

        The fires of one schedule end with the first one that does not fit. A time before `late_ms`
        is one to catch up on, so it also waits for the submit rate.
        """
        rooms: dict[str, int] = {}
        full: set[tuple[QueueName, str]] = set()
        reservation, allowed = Reservation(), []
        try:
            for fire in fires:
                tenant, schedule = fire.queue.tenant, (fire.queue, fire.schedule)
                limits = self.limits(tenant)
                if limits != NO_LIMITS and not fire.skipped and schedule not in full:
                    usage = self._usage_of(tenant)
                    if tenant not in rooms:
                        rooms[tenant] = await usage.room(store, limits)
                    late = fire.at_ms < late_ms
                    if rooms[tenant] < 1 or (late and not usage.may_submit(limits)):
                        full.add(schedule)
                    else:
                        rooms[tenant] -= 1
                        usage.take(1)
                        reservation.take(usage, 1)
                        usage.charge(limits, 1)
                allowed.append(schedule not in full)
        except BaseException:
            reservation.end({})
            raise
        return allowed, reservation

    async def admit_schedule(self, store: Store, spec: ScheduleSpec, now_ms: int) -> None:
        """QuotaExceeded if the schedule is new and the tenant has as many as it may have.

        InvalidJob if its times are closer than they may be. Storing a schedule again that is stored
        already is never refused, so that workers can start when limits have become lower.
        """
        tenant = spec.queue.tenant
        limits, usage = self.limits(tenant), self._usage_of(tenant)
        _check_priority(limits, tenant, spec.template.priority)
        _check_payload(limits, tenant, len(spec.template.payload))
        await self.admit_queues(store, {spec.queue, spec.template.queue})
        near = _least_ms(spec, now_ms) < limits.min_interval * 1000
        if not near and limits.max_schedules is None and limits.submit_rate is None:
            return
        listed = await store.list_schedules(spec.queue, limit=_MAX_SCHEDULES)
        stored = next((each.spec for each in listed if each.spec.id == spec.id), None)
        if stored == spec:
            return
        if near:
            raise InvalidJob(
                f"schedule {spec.id!r} has times that are less than {limits.min_interval:g} s "
                f"apart (min_interval of tenant {tenant!r}): make them rarer, or let the schedule "
                "wait for its job with after_complete"
            )
        usage.check_rate(limits)  # a schedule that is changed all the time fires all the time
        if stored is None and limits.max_schedules is not None:
            await self._check_schedules(store, tenant, limits.max_schedules)
        usage.charge(limits, 1)

    async def _check_schedules(self, store: Store, tenant: str, most: int) -> None:
        found = 0
        for record in await store.queues(tenant):
            found += len(await store.list_schedules(record.queue, limit=most - found))
            if found >= most:
                raise QuotaExceeded(
                    f"tenant {tenant!r} has {most:,} schedules, as many as it may have "
                    "(max_schedules): remove one first"
                )

    # ── queues, priorities, sizes ──

    async def admit_queues(self, store: Store, queues: Iterable[QueueName]) -> None:
        """QuotaExceeded if a queue is new and the tenant has as many as it may have."""
        if self.unlimited:
            return
        for queue in queues:
            limits = self.limits(queue.tenant)
            if limits.max_queues is not None:
                await self._usage_of(queue.tenant).check_queues(store, limits, {queue.queue})

    async def admit_worker(self, store: Store, tenant: str, name: str) -> None:
        """QuotaExceeded if the worker is new and the tenant has MAX_WORKERS."""
        await self._usage_of(tenant).check_worker(store, name)

    def admit_election(self, tenant: str, name: str) -> None:
        """QuotaExceeded if the election is new and the tenant has MAX_ELECTIONS."""
        elections = self._usage_of(tenant).elections
        if name not in elections and len(elections) >= MAX_ELECTIONS:
            raise QuotaExceeded(
                f"tenant {tenant!r} has {MAX_ELECTIONS} elections, as many as it may have"
            )
        elections.add(name)

    def check_priority(self, tenant: str, priority: int) -> None:
        """InvalidJob if the priority is above the ceiling of the tenant."""
        _check_priority(self.limits(tenant), tenant, priority)

    def check_payload(self, tenant: str, size: int, what: str = "payload") -> None:
        """PayloadTooLarge if the tenant may not store so many bytes."""
        _check_payload(self.limits(tenant), tenant, size, what)

    # ── active jobs ──

    async def admit_claim(
        self, store: Store, claim: Claim | None, ending: Sequence[LeaseRef]
    ) -> tuple[Claim | None, Starts]:
        """The claim, with no more jobs than the tenants of its queues may start now.

        `ending` are the leases that end with the same call. Queues of a tenant that may start none
        are left out, unless there are no others.
        """
        queues = () if claim is None else claim.queues
        bounded = {
            tenant: most
            for tenant in {queue.tenant for queue in queues}
            if (most := self.limits(tenant).max_active) is not None
        }
        for tenant, most in bounded.items():
            await self._usage_of(tenant).recount(store, most)
        # From here nothing waits, so no other claim gets the same room.
        starts = Starts()
        for tenant in {lease.queue.tenant for lease in ending}:
            if self.limits(tenant).max_active is not None:
                own = [lease for lease in ending if lease.queue.tenant == tenant]
                starts.end_leases(self._usage_of(tenant), own)
        if claim is None or not bounded:
            return claim, starts
        rooms = {each: self._usage_of(each).room_to_start(bounded[each]) for each in bounded}
        free = tuple(each for each in queues if rooms.get(each.tenant, 1) > 0)
        tenants = {queue.tenant for queue in free}
        limit = min(claim.limit, *(rooms[each] for each in rooms if each in tenants), NO_BOUND)
        claim = msgspec.structs.replace(claim, queues=free or queues, limit=limit if free else 0)
        starts.reserve([self._usage_of(each) for each in rooms if each in tenants], claim)
        return claim, starts

    def extended(self, leases: Iterable[LeaseRef], lease_ms: int) -> None:
        """These leases were renewed."""
        for lease in leases:
            self._usage_of(lease.queue.tenant).renew(lease, lease_ms)

    def forget(self, queue: QueueName) -> None:
        """The queue is removed, and leases of the tenant may be lost before their time."""
        if (usage := self._usage.get(queue.tenant)) is not None:
            usage.forget(queue.queue)

    async def wait_for_room(self, queues: Sequence[QueueName], timeout_ms: int) -> bool:
        """Wait until a job of a tenant with `max_active` active jobs ends at this server.

        False at once if nothing is full. True when it is worth to claim again.
        """
        tenants = {queue.tenant for queue in queues}
        if not self.bounds_active or len(tenants) != 1:
            return False
        tenant = tenants.pop()
        most, usage = self.limits(tenant).max_active, self._usage_of(tenant)
        if most is None or usage.room_to_start(most) > 0:
            return False
        await usage.wait_for_room(timeout_ms / 1000)
        return True


class Reservation:
    """Room that is reserved for the jobs of one call. Call `end` when the call has ended."""

    def __init__(self) -> None:
        self._taken: dict[Usage, int] = {}

    def take(self, usage: Usage, jobs: int) -> None:
        """Reserve room for so many jobs of a tenant."""
        self._taken[usage] = self._taken.get(usage, 0) + jobs

    def end(self, stored: Mapping[str, int] | None) -> None:
        """The jobs are stored: so many of each tenant. The rest of the room is free again.

        None: nobody knows how many, so all of them count until the next count.
        """
        for usage, jobs in self._taken.items():
            usage.stored(jobs, jobs if stored is None else stored.get(usage.tenant, 0))
        self._taken.clear()


class Starts:
    """What one exchange of a worker changes in the number of active jobs."""

    def __init__(self) -> None:
        self._usages: list[Usage] = []
        self._claim: Claim | None = None
        self._ending: list[tuple[Usage, list[LeaseRef]]] = []

    def end_leases(self, usage: Usage, leases: Sequence[LeaseRef]) -> None:
        """Count these leases as ended, as far as this server knows them."""
        self._ending.append((usage, usage.end_leases(leases)))

    def reserve(self, usages: list[Usage], claim: Claim) -> None:
        """Count the jobs of a claim as active."""
        self._usages, self._claim = usages, claim
        for usage in usages:
            usage.claims += claim.limit

    def end(self, settled: Settled | None) -> None:
        """The reply to the exchange. None: nobody knows what it did."""
        for usage in self._usages:
            assert self._claim is not None
            usage.claims -= self._claim.limit
            if settled is None:
                usage.begun += self._claim.limit
            else:
                usage.begin_leases(
                    [
                        LeaseRef(each.queue, each.id, each.token)
                        for each in settled.leases
                        if each.queue.tenant == usage.tenant
                    ],
                    self._claim.lease_ms,
                )
        stale = set(settled.stale) if settled is not None else None
        for usage, leases in self._ending:
            lost = len(leases) if stale is None else sum(each in stale for each in leases)
            usage.ended -= lost
            usage.wake(len(leases) - lost)


async def _new(store: Store, specs: Sequence[JobSpec], most: int) -> int:
    """How many of these jobs are new. Exact up to `most`: beyond it, locks are not looked up."""
    found = await store.get([JobKey(spec.queue, spec.id) for spec in specs])
    jobs: set[JobKey] = set()
    locks: set[tuple[QueueName, str]] = set()
    new = 0
    for spec, record in zip(specs, found, strict=True):
        job = JobKey(spec.queue, spec.id)
        # The id of a cancelled job is free again, so a job with that id is new.
        if job in jobs or (record is not None and record.state is not State.CANCELLED):
            continue
        if spec.unique is not None and new <= most:
            lock = (spec.queue, spec.unique.lock)
            if lock in locks or await _finds_its_lock_held(store, spec):
                continue
            locks.add(lock)
        jobs.add(job)
        new += 1
    return new


async def _finds_its_lock_held(store: Store, spec: JobSpec) -> bool:
    """Whether a job would be a duplicate, or only change another job, because of its lock."""
    assert spec.unique is not None
    lock = await store.find_lock(spec.queue, spec.unique.lock)
    if lock is None:
        return False
    (holder,) = await store.get([JobKey(spec.queue, lock.job)])
    state = standing(*((None, 0) if holder is None else (holder.state, holder.attempt)))
    what = on_held_lock(spec.unique.mode, state)
    return what in ("duplicate", "replace") or (what == "follow" and lock.follow_up is not None)


def _least_ms(spec: ScheduleSpec, now_ms: int) -> int:
    """The least time between two of the next times of a schedule."""
    if spec.after_complete:
        return NO_BOUND
    if spec.every_ms is not None:
        return spec.every_ms
    times: list[int] = []
    at = first_time(spec, now_ms)
    while at is not None and len(times) < _CRON_TIMES:
        times.append(at)
        at = next_after(spec, at)
    return min((later - at for at, later in pairwise(times)), default=NO_BOUND)


def _check_priority(limits: TenantLimits, tenant: str, priority: int) -> None:
    most = limits.max_priority
    if most is not None and priority > most:
        raise InvalidJob(
            f"priority={priority} is above {most}, the highest priority of tenant {tenant!r}"
        )


def _check_payload(limits: TenantLimits, tenant: str, size: int, what: str = "payload") -> None:
    most = limits.max_payload
    if most is not None and size > most:
        raise PayloadTooLarge(
            f"the {what} has {size:,} bytes, and tenant {tenant!r} may store {most:,} per job: "
            "store the data elsewhere and pass a reference"
        )
