"""What each tenant uses: its limits, and the counters that are compared with them.

A server counts for itself. The numbers of waiting, active and stored jobs come from the counters
that stores keep, and are read again after a second at the latest, so several servers together may
exceed a quota by what they accept within a second. The submit rate is a rate of each server.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import (
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Sequence,
)

import msgspec

from jobq.core.records.defaults import FLOW_MS
from jobq.core.records.jobs import (
    LeaseRef,
    QueueName,
)
from jobq.core.records.states import State
from jobq.core.rules.limits import COUNTED_STATES
from jobq.errors import QuotaExceeded
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
MAX_WORKERS = 10_000
"""Workers of one tenant. The store keeps a record of each."""
_WORKERS_S = 60.0
"""Seconds that a list of workers is used for those that are on it."""
NO_BOUND = 2**62
_SPARE_LEASES = 1_000
"""Leases that are remembered beyond those that are active."""
_AT_ONCE = 16
"""Queues that are counted at the same time."""


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


class Usage:
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
            return NO_BOUND
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
            (most - used for used, most, _ in self._bounds(limits, again=again)), default=NO_BOUND
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
