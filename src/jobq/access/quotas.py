"""What each tenant may use: how much may wait and run, how fast it may submit, how urgent its jobs
are.

A server counts for itself. The numbers of waiting, active and stored jobs come from the counters
that stores keep, and are read again after a second at the latest, so several servers together may
exceed a quota by what they accept within a second. The submit rate is a rate of each server.

Jobs that come back (a retry, a stall, a release) and dead letters count and are never refused:
each takes the place of a job that was unfinished before. So unfinished jobs are at most
`max_waiting` and `max_active` together, because each new one and each rerun is compared with that
sum.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter, deque
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from itertools import pairwise

import msgspec

from jobq.core.records.commands import AnyCommand, Rerun, Revive
from jobq.core.records.defaults import FLOW_MS
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
from jobq.core.rules.limits import COUNTED_STATES
from jobq.core.rules.locks import on_held_lock, standing
from jobq.errors import InvalidJob, PayloadTooLarge, QuotaExceeded
from jobq.stores.base import Store

_COUNTED_S = 1.0
"""Seconds that a count of jobs is used. What this server accepts meanwhile is added."""
_RECOUNT_S = 0.1
"""Seconds between two counts if the quota seems to be used up, so that refusals cost little."""
_STAGED_S = FLOW_MS / 1000
"""Seconds that jobs of a flow count without further ones. Stores keep them for as long, so that the
client may still submit the flow."""
_MAX_DEBT_S = 60.0
_MAX_DEBT = 10_000.0
"""Seconds, and jobs, by which parts of one flow may exceed the submit rate; the larger one counts.
Without a bound, a tenant could stage one flow for ever."""
ROOM_MS = 1_000
"""Milliseconds after which a worker asks again that got no job because of `max_active`. It is woken
earlier if a job of the tenant ends at this server."""
MAX_WORKERS = 10_000
"""Workers of one tenant. The store keeps a record of each."""
_WORKERS_S = 60.0
"""Seconds that a list of workers is used for those that are on it."""
MAX_ELECTIONS = 100
"""Elections of one tenant at one server. A store keeps the name of each."""
_CRON_TIMES = 10
"""Times of a new cron schedule whose distances are compared with `min_interval`."""
_NO_BOUND = 2**62
_MAX_SCHEDULES = 10_000
"""Schedules of one queue that are looked through for one."""
_SPARE_LEASES = 1_000
"""Leases that are remembered beyond those that are active."""
_AT_ONCE = 16
"""Queues that are counted at the same time."""
_MAX_TENANTS = 10_000
"""Tenants whose usage is remembered. It is counted again when it is needed."""


class TenantLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The limits of one tenant. None means no such limit."""

    max_waiting: int | None = None
    """Jobs that have not started, in all queues of the tenant."""
    max_active: int | None = None
    """Jobs that run at the same time, in all queues of the tenant."""
    max_stored: int | None = None
    """Jobs in all states, in all queues: also ended ones, until retention removes them."""
    max_payload: int | None = None
    """Bytes of the arguments of one job, of its result, or of the value of a signal."""
    max_queues: int | None = None
    max_schedules: int | None = None
    min_interval: float = 1.0
    """Seconds between two times of a schedule. Schedules with `after_complete` are exempt."""
    submit_rate: float | None = None
    """Jobs per second, at each server. A batch may exceed it, and the next ones wait for it."""
    max_priority: int | None = None
    """The highest priority of a job. The tiers 0 to 9 are the priorities 0 to 9."""


NO_LIMITS = TenantLimits()


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
        self._usage: dict[str, _Usage] = {}
        every = (default, *self._tenants.values())
        self.unlimited = all(limits == NO_LIMITS for limits in every)
        self.bounds_active = any(limits.max_active is not None for limits in every)
        """Whether a tenant has `max_active`, so that leases are counted."""

    def limits(self, tenant: str) -> TenantLimits:
        """The limits of a tenant."""
        return self._tenants.get(tenant, self._default)

    def _usage_of(self, tenant: str) -> _Usage:
        found = self._usage.get(tenant)
        if found is None:
            if len(self._usage) >= _MAX_TENANTS:
                del self._usage[next(iter(self._usage))]
            found = self._usage[tenant] = _Usage(tenant, self._clock)
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
        limit = min(claim.limit, *(rooms[each] for each in rooms if each in tenants), _NO_BOUND)
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
        self._taken: dict[_Usage, int] = {}

    def take(self, usage: _Usage, jobs: int) -> None:
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
        self._usages: list[_Usage] = []
        self._claim: Claim | None = None
        self._ending: list[tuple[_Usage, list[LeaseRef]]] = []

    def end_leases(self, usage: _Usage, leases: Sequence[LeaseRef]) -> None:
        """Count these leases as ended, as far as this server knows them."""
        self._ending.append((usage, usage.end_leases(leases)))

    def reserve(self, usages: list[_Usage], claim: Claim) -> None:
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
        return _NO_BOUND
    if spec.every_ms is not None:
        return spec.every_ms
    times: list[int] = []
    at = first_time(spec, now_ms)
    while at is not None and len(times) < _CRON_TIMES:
        times.append(at)
        at = next_after(spec, at)
    return min((later - at for at, later in pairwise(times)), default=_NO_BOUND)


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


class _Usage:
    """What one tenant uses, as far as this server knows."""

    def __init__(self, tenant: str, clock: Callable[[], float]) -> None:
        self.tenant = tenant
        self.in_flight = 0
        """Jobs that were admitted and are not stored yet."""
        self._clock = clock
        self._counted: Counter[State] = Counter()
        self._counted_at = float("-inf")
        self._added = 0
        """Jobs that were admitted since the last count, or were in flight then."""
        self._counting = asyncio.Lock()
        self._naming = asyncio.Lock()
        self._queues: set[str] = set()
        self._making: dict[str, float] = {}
        """Until when new queues count that were admitted and that the store does not have yet."""
        self._staged: dict[str, tuple[int, float]] = {}
        """Jobs of flows that are not submitted, and until when they count. The first ends first."""
        self._all_staged = 0
        self._tokens: float | None = None
        self._filled_at = 0.0
        self.claims = 0
        """Jobs that claims in flight may start."""
        self.begun = 0
        """Jobs that were started here since the last count began."""
        self.ended = 0
        """Leases of this server that have ended here since the last count."""
        self.leases: dict[LeaseRef, float] = {}
        """Leases that this server has granted and that have not ended here, and until when they
        last. An outcome makes room only for a lease that is here, and only once."""
        self.elections: set[str] = set()
        self._workers: set[str] = set()
        self._workers_at = float("-inf")
        self._sleepers: deque[asyncio.Future[None]] = deque()

    # ── queues ──

    async def check_queues(self, store: Store, limits: TenantLimits, names: Iterable[str]) -> None:
        """QuotaExceeded if these queues would be more than the tenant may have."""
        if limits.max_queues is None or not (new := set(names) - self._queues):
            return
        async with self._naming:
            records = await store.queues(self.tenant)
            self._queues = {record.queue.queue for record in records}
            # A store makes the queue of dead letters when the first job fails.
            self._queues |= {each.dead_letters for each in records if each.dead_letters is not None}
            now = self._clock()
            self._making = {
                name: until
                for name, until in self._making.items()
                if until > now and name not in self._queues
            }
            new -= self._queues | set(self._making)
            have = len(self._queues) + len(self._making)
            if new and have + len(new) > limits.max_queues:
                raise QuotaExceeded(
                    f"tenant {self.tenant!r} has {have:,} of {limits.max_queues:,} queues "
                    f"(max_queues), so {min(new)!r} cannot be made: use another, or remove one"
                )
            self._making.update(dict.fromkeys(new, now + _COUNTED_S))

    def forget(self, queue: str) -> None:
        """The queue is removed."""
        self._queues.discard(queue)
        self.leases.clear()

    async def check_worker(self, store: Store, name: str) -> None:
        """QuotaExceeded if the worker is new and there are MAX_WORKERS."""
        if name in self._workers and self._clock() < self._workers_at + _WORKERS_S:
            return
        if self._clock() >= self._workers_at + _COUNTED_S:
            self._workers_at = self._clock()
            prefix = f"{self.tenant}:"
            found = await store.workers()
            self._workers = {each.name for each in found if each.name.startswith(prefix)}
        if name not in self._workers and len(self._workers) >= MAX_WORKERS:
            raise QuotaExceeded(
                f"tenant {self.tenant!r} has {MAX_WORKERS:,} workers, as many as it may have"
            )
        self._workers.add(name)

    # ── rate: a bucket that holds the jobs of one second ──

    def check_rate(self, limits: TenantLimits, *, staged: bool = False) -> None:
        """QuotaExceeded while the tenant has submitted more than its rate allows.

        `staged`: the jobs belong to a flow that was begun. A flow is one batch, up to a bound."""
        rate = limits.submit_rate
        if rate is None:
            return
        tokens = self._fill(rate)
        least = -max(_MAX_DEBT_S * rate, _MAX_DEBT) if staged else 1.0
        if tokens < least:
            after = (least - tokens) / rate
            raise QuotaExceeded(
                f"tenant {self.tenant!r} submits more than {rate:g} jobs per second (submit_rate): "
                f"try again in {after:.2f} s",
                retry_after=after,
            )

    def may_submit(self, limits: TenantLimits) -> bool:
        """Whether the rate allows a job now."""
        return limits.submit_rate is None or self._fill(limits.submit_rate) >= 1.0

    def _fill(self, rate: float) -> float:
        now = self._clock()
        if self._tokens is None:
            self._tokens, self._filled_at = max(rate, 1.0), now
        self._tokens = min(max(rate, 1.0), self._tokens + (now - self._filled_at) * rate)
        self._filled_at = now
        return self._tokens

    def charge(self, limits: TenantLimits, jobs: int) -> None:
        """Take the jobs from the bucket. A batch may take more than is there."""
        if limits.submit_rate is not None:
            self._tokens = self._fill(limits.submit_rate) - jobs

    # ── jobs that are not finished, and stored ones ──

    async def reserve(
        self,
        store: Store,
        limits: TenantLimits,
        jobs: int,
        new: Callable[[int], Awaitable[int]],
        *,
        again: bool = False,
    ) -> None:
        """Count these jobs as waiting, or raise QuotaExceeded.

        If they may not fit, `new` says how many of them are new: duplicates are not. It has to be
        exact up to the number it gets. `again`: they are stored already.
        """
        room = await self.room(store, limits, jobs, again=again)
        if room < jobs:
            count = await new(max(room, 0))
            for used, most, bound in self._bounds(limits, again=again):
                if count > max(most - used, 0):
                    raise self._exceeded(bound, used, most, count)
        self.take(jobs)

    def take(self, jobs: int) -> None:
        """Count jobs as waiting that are about to be stored."""
        self.in_flight += jobs
        self._added += jobs

    def stored(self, jobs: int, stored: int) -> None:
        """So many of the jobs that `take` counted are stored, and the others are not."""
        self.in_flight -= jobs
        self._added -= jobs - stored

    async def room(
        self, store: Store, limits: TenantLimits, jobs: int = 1, *, again: bool = False
    ) -> int:
        """How many new jobs fit."""
        if limits.max_waiting is None and limits.max_stored is None:
            return _NO_BOUND
        async with self._counting:
            self._forget_old_flows()
            age = self._clock() - self._counted_at
            full = self._free(limits, again=again) < jobs
            if age >= _COUNTED_S or (full and age >= _RECOUNT_S):
                await self._count(store)
            return self._free(limits, again=again)

    def _free(self, limits: TenantLimits, *, again: bool) -> int:
        """How many new jobs fit."""
        return min(
            (most - used for used, most, _ in self._bounds(limits, again=again)), default=_NO_BOUND
        )

    def _bounds(self, limits: TenantLimits, *, again: bool) -> Iterator[tuple[int, int, str]]:
        """What the tenant has, what it may have, and which limit says so."""
        if limits.max_waiting is not None:
            waiting = self._waiting
            yield waiting, limits.max_waiting, "max_waiting"
            if limits.max_active is not None:
                # Active jobs may come back, and then all of them wait.
                used = waiting + self._counted[State.ACTIVE]
                yield used, limits.max_waiting + limits.max_active, "max_active"
        if limits.max_stored is not None and not again:
            used = self._counted.total() + self._added + self._all_staged
            yield used, limits.max_stored, "max_stored"

    def _exceeded(self, bound: str, used: int, most: int, jobs: int) -> QuotaExceeded:
        rest = f"so {jobs:,} more do not fit: try again when workers have started some"
        if bound == "max_waiting":
            return QuotaExceeded(
                f"tenant {self.tenant!r} has {used:,} waiting jobs and may have {most:,} "
                f"(max_waiting), {rest}"
            )
        if bound == "max_active":
            return QuotaExceeded(
                f"tenant {self.tenant!r} has {used:,} unfinished jobs and may have {most:,} "
                f"(max_waiting and max_active), {rest}"
            )
        return QuotaExceeded(
            f"tenant {self.tenant!r} has {used:,} stored jobs, ended ones included, and may have "
            f"{most:,} (max_stored), so {jobs:,} more do not fit: purge ended jobs, or keep them "
            "for less time"
        )

    @property
    def _waiting(self) -> int:
        return (
            sum(self._counted[state] for state in COUNTED_STATES) + self._added + self._all_staged
        )

    def is_staged(self, flow: str) -> bool:
        """Whether jobs of this flow are stored and the flow is not submitted."""
        return flow in self._staged

    def stage(self, flow: str, jobs: int, *, last: bool) -> None:
        """Move jobs from those that the next count finds to those of the flow, or back."""
        found = self.unstage(flow)
        if last:
            self._added += found
        else:
            self._added -= jobs
            self._all_staged += found + jobs
            self._staged[flow] = found + jobs, self._clock() + _STAGED_S

    def unstage(self, flow: str) -> int:
        """The flow is submitted or given up. Returns how many jobs it had."""
        found, _ = self._staged.pop(flow, (0, 0.0))
        self._all_staged -= found
        return found

    def _forget_old_flows(self) -> None:
        now = self._clock()
        while self._staged and self._staged[flow := next(iter(self._staged))][1] <= now:
            self.unstage(flow)

    async def _count(self, store: Store) -> None:
        """Read the store's counters: one read per queue, however many jobs there are."""
        free = asyncio.Semaphore(_AT_ONCE)

        async def counts(queue: QueueName) -> dict[State, int]:
            async with free:
                return await store.count(queue)

        in_flight, added, begun = self.in_flight, self._added, self.begun
        records = await store.queues(self.tenant)
        counted: Counter[State] = Counter()
        for each in await asyncio.gather(*(counts(record.queue) for record in records)):
            counted.update(each)
        self._counted, self._counted_at = counted, self._clock()
        # Jobs that were in flight when the count began, or were admitted since, may be counted
        # already: that errs on the safe side.
        self._added = in_flight + self._added - added
        # So do leases: those that have begun since may be counted, those that have ended may not.
        self.begun -= begun
        self.ended = 0

    # ── active jobs ──

    async def recount(self, store: Store, most: int) -> None:
        """Count again if the last count is old, or says that no job may start."""
        async with self._counting:
            age = self._clock() - self._counted_at
            if age >= _COUNTED_S or (self.room_to_start(most) <= 0 and age >= _RECOUNT_S):
                await self._count(store)

    def room_to_start(self, most: int) -> int:
        """How many jobs may start."""
        return most - self._counted[State.ACTIVE] - self.begun + self.ended - self.claims

    def begin_leases(self, leases: Sequence[LeaseRef], lease_ms: int) -> None:
        """Count leases that were granted. A repeated reply changes nothing."""
        now = self._clock()
        if len(self.leases) > 2 * (self._counted[State.ACTIVE] + self.begun) + _SPARE_LEASES:
            self.leases = {lease: until for lease, until in self.leases.items() if until > now}
        for lease in leases:
            if lease not in self.leases:
                self.begun += 1
            self.leases[lease] = now + lease_ms / 1000

    def end_leases(self, leases: Sequence[LeaseRef]) -> list[LeaseRef]:
        """Count leases that end now. Returns those that this server knows to be held."""
        now = self._clock()
        known = [lease for lease in leases if self.leases.pop(lease, now) > now]
        self.ended += len(known)
        return known

    def renew(self, lease: LeaseRef, lease_ms: int) -> None:
        """The lease lasts longer."""
        if lease in self.leases:
            self.leases[lease] = self._clock() + lease_ms / 1000

    async def wait_for_room(self, timeout_s: float) -> None:
        """Wait until a lease ends here, or for the time."""
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleepers.append(woken)
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await woken
        finally:
            with contextlib.suppress(ValueError):  # `wake` has taken it out
                self._sleepers.remove(woken)

    def wake(self, workers: int) -> None:
        """Wake workers that wait for room, those that have waited longest first."""
        while workers > 0 and self._sleepers:
            woken = self._sleepers.popleft()
            if not woken.done():
                woken.set_result(None)
                workers -= 1
