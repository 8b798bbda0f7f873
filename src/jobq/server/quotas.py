"""What each tenant may use: how much may wait, how fast it may submit, how urgent its jobs are.

A server counts for itself. The number of waiting jobs comes from the counters that stores keep, and
is read again after a second at the latest, so several servers together may exceed a quota by what
they accept within a second. The submit rate is a rate of each server.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from jobq.core.bounds import COUNTED
from jobq.core.defaults import FLOW_MS
from jobq.core.queues import ScheduleSpec
from jobq.core.records import JobKey, JobSpec, QueueName
from jobq.core.states import State
from jobq.errors import InvalidJob, PayloadTooLarge, QuotaExceeded
from jobq.stores.base import Store

_COUNTED_S = 1.0
"""Seconds that a count of waiting jobs is used. What this server accepts meanwhile is added."""
_RECOUNT_S = 0.1
"""Seconds between two counts if the quota seems to be used up, so that refusals cost little."""
_STAGED_S = FLOW_MS / 1000
"""Seconds that jobs of a flow count without further ones. Stores keep them for as long, so that the
client may still submit the flow."""
_MAX_DEBT_S = 60.0
_MAX_DEBT = 10_000.0
"""Seconds, and jobs, by which parts of one flow may exceed the submit rate; the larger one counts.
Without a bound, a tenant could stage one flow for ever."""
_AT_ONCE = 16
"""Queues that are counted at the same time."""
_MAX_TENANTS = 10_000
"""Tenants whose usage is remembered. It is counted again when it is needed."""


class TenantLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The limits of one tenant. None means no such limit."""

    max_waiting: int | None = None
    """Jobs that have not started, in all queues of the tenant."""
    max_payload: int | None = None
    """Bytes of the arguments of one job, or of the value of a signal."""
    max_queues: int | None = None
    max_schedules: int | None = None
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
        self.unlimited = default == NO_LIMITS and not any(
            limits != NO_LIMITS for limits in self._tenants.values()
        )

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

    async def admit(
        self, store: Store, specs: Sequence[JobSpec], *, flow: str | None = None
    ) -> None:
        """Reserve places for new jobs. QuotaExceeded, InvalidJob or PayloadTooLarge if not.

        Call `done` when the jobs are stored, or were refused for another reason.
        """
        reserved: list[JobSpec] = []
        try:
            for tenant, own in self._by_tenant(specs):
                await self._admit(store, tenant, own, flow)
                reserved += own
        except BaseException:
            # What was staged of a flow still counts: the store knows nothing of this refusal.
            self.done(reserved)
            raise

    async def _admit(
        self, store: Store, tenant: str, specs: Sequence[JobSpec], flow: str | None
    ) -> None:
        limits, usage = self.limits(tenant), self._usage_of(tenant)
        for spec in specs:
            _check_priority(limits, tenant, spec.priority)
            _check_payload(limits, tenant, len(spec.payload))
        await usage.check_queues(store, limits, {spec.queue.queue for spec in specs})
        usage.check_rate(limits, staged=flow is not None and usage.is_staged(flow))
        await usage.reserve(store, limits, specs)
        usage.charge(limits, len(specs))

    def done(self, specs: Sequence[JobSpec]) -> None:
        """The jobs that `admit` let pass are stored, or were refused."""
        for tenant, own in self._by_tenant(specs):
            self._usage_of(tenant).in_flight -= len(own)

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

    async def admit_queues(self, store: Store, queues: Iterable[QueueName]) -> None:
        """QuotaExceeded if a queue is new and the tenant has as many as it may have."""
        if self.unlimited:
            return
        for queue in queues:
            limits = self.limits(queue.tenant)
            if limits.max_queues is not None:
                await self._usage_of(queue.tenant).check_queues(store, limits, {queue.queue})

    async def admit_schedule(self, store: Store, spec: ScheduleSpec) -> None:
        """QuotaExceeded if the schedule is new and the tenant has as many as it may have."""
        tenant = spec.queue.tenant
        limits = self.limits(tenant)
        _check_priority(limits, tenant, spec.template.priority)
        _check_payload(limits, tenant, len(spec.template.payload))
        await self.admit_queues(store, {spec.queue, spec.template.queue})
        most = limits.max_schedules
        if most is None:
            return
        found = 0
        for record in await store.queues(tenant):
            for schedule in await store.list_schedules(record.queue, limit=most + 1 - found):
                if (schedule.spec.queue, schedule.spec.id) == (spec.queue, spec.id):
                    return
                found += 1
            if found >= most:
                # The schedule may still be one of those that were not listed.
                if not await _has_schedule(store, spec):
                    raise QuotaExceeded(
                        f"tenant {tenant!r} has {most:,} schedules, as many as it may have "
                        "(max_schedules): remove one first"
                    )
                return

    def check_priority(self, tenant: str, priority: int) -> None:
        """InvalidJob if the priority is above the ceiling of the tenant."""
        _check_priority(self.limits(tenant), tenant, priority)

    def check_payload(self, tenant: str, size: int) -> None:
        """PayloadTooLarge if the tenant may not store so many bytes."""
        _check_payload(self.limits(tenant), tenant, size)


async def _has_schedule(store: Store, spec: ScheduleSpec) -> bool:
    listed = await store.list_schedules(spec.queue, limit=10_000)
    return any(schedule.spec.id == spec.id for schedule in listed)


def _check_priority(limits: TenantLimits, tenant: str, priority: int) -> None:
    most = limits.max_priority
    if most is not None and priority > most:
        raise InvalidJob(
            f"priority={priority} is above {most}, the highest priority of tenant {tenant!r}"
        )


def _check_payload(limits: TenantLimits, tenant: str, size: int) -> None:
    most = limits.max_payload
    if most is not None and size > most:
        raise PayloadTooLarge(
            f"the payload has {size:,} bytes, and tenant {tenant!r} may store {most:,} per job: "
            "store the data elsewhere and pass a reference"
        )


class _Usage:
    """What one tenant uses, as far as this server knows."""

    def __init__(self, tenant: str, clock: Callable[[], float]) -> None:
        self.tenant = tenant
        self.in_flight = 0
        """Jobs that were admitted and are not stored yet."""
        self._clock = clock
        self._counted = 0
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

    # ── queues ──

    async def check_queues(self, store: Store, limits: TenantLimits, names: Iterable[str]) -> None:
        """QuotaExceeded if these queues would be more than the tenant may have."""
        if limits.max_queues is None or not (new := set(names) - self._queues):
            return
        async with self._naming:
            self._queues = {record.queue.queue for record in await store.queues(self.tenant)}
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

    # ── rate: a bucket that holds the jobs of one second ──

    def check_rate(self, limits: TenantLimits, *, staged: bool = False) -> None:
        """QuotaExceeded while the tenant has submitted more than its rate allows.

        `staged`: the jobs belong to a flow that was begun. A flow is one batch, up to a bound."""
        rate = limits.submit_rate
        if rate is None:
            return
        now = self._clock()
        if self._tokens is None:
            self._tokens, self._filled_at = max(rate, 1.0), now
        self._tokens = min(max(rate, 1.0), self._tokens + (now - self._filled_at) * rate)
        self._filled_at = now
        least = -max(_MAX_DEBT_S * rate, _MAX_DEBT) if staged else 1.0
        if self._tokens < least:
            after = (least - self._tokens) / rate
            raise QuotaExceeded(
                f"tenant {self.tenant!r} submits more than {rate:g} jobs per second (submit_rate): "
                f"try again in {after:.2f} s",
                retry_after=after,
            )

    def charge(self, limits: TenantLimits, jobs: int) -> None:
        """Take the jobs from the bucket. A batch may take more than is there."""
        if limits.submit_rate is not None and self._tokens is not None:
            self._tokens -= jobs

    # ── waiting jobs ──

    async def reserve(self, store: Store, limits: TenantLimits, specs: Sequence[JobSpec]) -> None:
        """Count these jobs as waiting, or raise QuotaExceeded."""
        most = limits.max_waiting
        if most is not None and not await self._fits(store, most, len(specs)):
            found = await store.get([JobKey(spec.queue, spec.id) for spec in specs])
            # The id of a cancelled job is free again, so a job with that id is new.
            new = sum(record is None or record.state is State.CANCELLED for record in found)
            if new and self._waiting + new > most:
                raise QuotaExceeded(
                    f"tenant {self.tenant!r} has {self._waiting:,} waiting jobs and may have "
                    f"{most:,} (max_waiting), so {new:,} more do not fit: try again when workers "
                    "have started some"
                )
        self.in_flight += len(specs)
        self._added += len(specs)

    @property
    def _waiting(self) -> int:
        return self._counted + self._added + self._all_staged

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

    async def _fits(self, store: Store, most: int, jobs: int) -> bool:
        async with self._counting:
            self._forget_old_flows()
            age = self._clock() - self._counted_at
            full = self._waiting + jobs > most
            if age >= _COUNTED_S or (full and age >= _RECOUNT_S):
                await self._count(store)
            return self._waiting + jobs <= most

    async def _count(self, store: Store) -> None:
        """Read the store's counters: one read per queue, however many jobs there are."""
        free = asyncio.Semaphore(_AT_ONCE)

        async def waiting(queue: QueueName) -> int:
            async with free:
                counts = await store.count(queue)
            return sum(counts.get(state, 0) for state in COUNTED)

        in_flight, added = self.in_flight, self._added
        records = await store.queues(self.tenant)
        counted = sum(await asyncio.gather(*(waiting(record.queue) for record in records)))
        self._counted, self._counted_at = counted, self._clock()
        # Jobs that were in flight when the count began, or were admitted since, may be counted
        # already: that errs on the safe side.
        self._added = in_flight + self._added - added
