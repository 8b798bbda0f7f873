"""The one place that decides whether a caller may do something.

A `GuardedStore` is the server's store as one principal sees it. Every service uses it, so no
service has rules of its own. What belongs to another tenant looks as if it did not exist.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import compress
from types import TracebackType
from typing import Self, TypeVar

from msgspec.structs import replace

from jobq.core.checks import as_actor
from jobq.core.commands import Altered, AnyCommand
from jobq.core.event_records import EventPage
from jobq.core.holds import MAX_LISTED
from jobq.core.locks import LockRecord
from jobq.core.queues import (
    Fire,
    HoldsRecord,
    Limits,
    MinuteRecord,
    QueueConfig,
    QueueRecord,
    ScheduleRecord,
    ScheduleSpec,
    StatsRecord,
)
from jobq.core.records import (
    AnyOutcome,
    Block,
    Claim,
    Edge,
    Filter,
    JobKey,
    JobRecord,
    JobSpec,
    LeaseRef,
    LeaseState,
    Note,
    Page,
    PutResult,
    QueueName,
    Settled,
    Signal,
    Topic,
)
from jobq.core.states import State
from jobq.core.workers import Beat, WorkerRecord, WorkerRequest
from jobq.errors import AccessDenied, JobNotFound, Unauthenticated
from jobq.server.access import CALLS as CALLS
from jobq.server.access import CallRule as CallRule
from jobq.server.principal import Principal, Scope
from jobq.server.quotas import TenantRules
from jobq.stores.base import Store, pipeline_of

_R = TypeVar("_R")

_ADMIN: frozenset[Scope] = frozenset({"admin"})
_READ: frozenset[Scope] = frozenset({"read"})
_MAX_LIMIT = 10_000
"""Records or steps that one call may ask for. More is cut: callers ask again for the rest."""


class GuardedStore:
    """The Store contract for one principal.

    AccessDenied if the principal's scopes do not allow a call. JobNotFound if a call names a queue
    of another tenant. Names of workers begin with `tenant:` if the principal has a tenant, so that
    workers of two tenants never share a name.
    """

    def __init__(
        self,
        store: Store,
        principal: Principal,
        tenants: TenantRules,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._tenants = tenants
        self.principal = principal
        self.url = store.url
        self._clock = clock
        self._allowed = frozenset(
            name for name, rule in CALLS.items() if principal.may(rule.scopes)
        )

    # ── the rules ─────────────────────────────────────────────────────────────────────────────────

    def check(self, call: str) -> None:
        """AccessDenied unless the principal's scopes allow the call.

        Unauthenticated if the token has expired, also in the middle of a long stream.
        """
        expires_s = self.principal.expires_s
        if expires_s is not None and self._clock() >= expires_s:
            raise Unauthenticated("the token has expired: connect again with a new one")
        if call not in self._allowed:
            self._refuse(call, CALLS[call].scopes)

    def _refuse(self, call: str, needed: frozenset[Scope]) -> None:
        have = " ".join(sorted(self.principal.scopes)) or "none"
        need = " or ".join(sorted(needed))
        raise AccessDenied(
            f"{call} needs the scope {need}, and the token of {self.principal.subject!r} has {have}"
        )

    def _is_own(self, tenant: str) -> bool:
        return self.principal.tenant is None or tenant == self.principal.tenant

    def _own(self, queue: QueueName) -> None:
        if not self._is_own(queue.tenant):
            raise JobNotFound(f"there is no queue {queue.queue!r} of tenant {queue.tenant!r}")

    def _own_all(self, queues: Iterable[QueueName]) -> None:
        mine = self.principal.tenant
        if mine is None:
            return
        for queue in queues:
            if queue.tenant != mine:
                self._own(queue)

    def _own_edges(self, edges: Sequence[Edge]) -> None:
        for edge in edges:
            self._own(edge.job.queue)

    def _own_spec(self, spec: JobSpec) -> None:
        self._own(spec.queue)
        if spec.after:
            self._own_edges(spec.after)

    def _named(self, name: str) -> str:
        """The name of a worker or an election in the store."""
        tenant = self.principal.tenant
        if tenant is None or name.startswith(f"{tenant}:"):
            return name
        return f"{tenant}:{name}"

    def _actor(self, actor: str | None) -> str | None:
        """Who an event names: the token's subject, and what the caller says about itself."""
        subject = self.principal.subject
        if not subject:
            return actor
        return as_actor(f"{subject} ({actor})" if actor else subject)

    # ── what runs for every job ───────────────────────────────────────────────────────────────────

    async def put(
        self, specs: Sequence[JobSpec], *, flow: str | None = None, last: bool = True
    ) -> list[PutResult]:
        """Accept jobs. A caller without the scope `read` does not see the job of a duplicate."""
        self.check("put")
        if self.principal.tenant is not None:
            for spec in specs:
                self._own_spec(spec)
        results = await self._store.put(specs, flow=flow, last=last)
        if not self.principal.may(_READ):
            return [replace(each, found=None) if each.found else each for each in results]
        return results

    async def settle(
        self, outcomes: Sequence[AnyOutcome], *, worker: str, call: str, then: Claim | None = None
    ) -> Settled:
        """Apply outcomes, and claim. Outcomes of another tenant's jobs are stale."""
        self.check("settle")
        if then is not None:
            self._own_all(then.queues)
            if then.limit > _MAX_LIMIT:
                then = replace(then, limit=_MAX_LIMIT)
        if self.principal.tenant is None:
            return await self._store.settle(outcomes, worker=worker, call=call, then=then)
        mine: list[AnyOutcome] = []
        others: list[LeaseRef] = []
        for each in outcomes:
            if isinstance(each, Block):
                self._own_edges(each.after)
            if self._is_own(each.queue.tenant):
                mine.append(each)
            else:
                others.append(LeaseRef(each.queue, each.id, each.token))
        settled = await self._store.settle(mine, worker=self._named(worker), call=call, then=then)
        return replace(settled, stale=(*settled.stale, *others)) if others else settled

    async def extend(self, leases: Sequence[LeaseRef], *, lease_ms: int) -> list[LeaseState]:
        """Renew leases. Those of other tenants are lost."""
        self.check("extend")
        own = [self._is_own(lease.queue.tenant) for lease in leases]
        mine = list(compress(leases, own))
        states = await self._store.extend(mine, lease_ms=lease_ms) if mine else []
        return _in_place(own, states, "lost")

    async def note(self, notes: Sequence[Note]) -> list[LeaseState]:
        """Store notes. Leases of other tenants are lost."""
        self.check("note")
        own = [self._is_own(note.lease.queue.tenant) for note in notes]
        mine = list(compress(notes, own))
        states = await self._store.note(mine) if mine else []
        return _in_place(own, states, "lost")

    async def sleep(
        self, queues: Sequence[QueueName], *, worker: str, slots: int, timeout_ms: int
    ) -> bool:
        """Wait for work."""
        self.check("sleep")
        self._own_all(queues)
        return await self._store.sleep(
            queues, worker=self._named(worker), slots=slots, timeout_ms=timeout_ms
        )

    def listen(self, topics: Sequence[Topic]) -> AbstractAsyncContextManager[AsyncIterator[Signal]]:
        """Signals for these topics."""
        self.check("listen")
        own: list[Topic] = []
        for topic in topics:
            if topic.queue is not None:
                self._own(topic.queue)
            if topic.kind == "cancel" and topic.name is not None:
                topic = topic._replace(name=self._named(topic.name))
            elif topic.queue is None and self.principal.tenant is not None:
                raise JobNotFound(f"a topic of the kind {topic.kind} needs a queue")
            own.append(topic)
        return self._store.listen(own)

    @asynccontextmanager
    async def expect(self, job: JobKey) -> AsyncIterator[AsyncIterator[JobRecord | None]]:
        """The end of a job that is put inside the context (see `Pipelined`)."""
        self.check("listen")
        self._own(job.queue)
        if (pipeline := pipeline_of(self._store)) is not None:
            async with pipeline.expect(job) as ends:
                yield ends
        else:
            async with self._store.listen([Topic("ended", job.queue, job.id)]) as signals:
                yield (None async for _ in signals)

    # ── what people and their tools do ────────────────────────────────────────────────────────────

    async def alter(self, commands: Sequence[AnyCommand]) -> list[Altered]:
        """Carry out commands. Jobs of other tenants are missing. Removing a job needs admin."""
        self.check("alter")
        own = [self._is_own(each.job.queue.tenant) for each in commands]
        mine = list(compress(commands, own))
        removes = any(each.__struct_config__.tag == "remove" for each in mine)
        if removes and not self.principal.may(_ADMIN):
            self._refuse("remove", _ADMIN)
        named = [
            replace(each, actor=self._actor(each.actor)) if self.principal.subject else each
            for each in mine
        ]
        done = await self._store.alter(named) if named else []
        return _in_place(own, done, "missing")

    async def declare(self, queue: QueueName, config: QueueConfig) -> QueueRecord:
        """Store what code declares."""
        self.check("declare")
        self._own(queue)
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
        await self._store.set_limits(queue, limits, key=key, actor=self._actor(actor))

    async def pause(self, queue: QueueName, *, actor: str | None = None) -> None:
        """Stop claims."""
        self.check("pause")
        self._own(queue)
        await self._store.pause(queue, actor=self._actor(actor))

    async def resume(self, queue: QueueName, *, actor: str | None = None) -> None:
        """Allow claims again."""
        self.check("resume")
        self._own(queue)
        await self._store.resume(queue, actor=self._actor(actor))

    async def hold(
        self, queue: QueueName, ms: int, key: str | None = None, *, actor: str | None = None
    ) -> None:
        """Stop claims for a while."""
        self.check("hold")
        self._own(queue)
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
            queue, delayed=delayed, limit=min(limit, _MAX_LIMIT), actor=self._actor(actor)
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
            limit=min(limit, _MAX_LIMIT),
            actor=self._actor(actor),
        )

    async def obliterate(
        self, queue: QueueName, *, force: bool = False, limit: int = 1000, actor: str | None = None
    ) -> bool:
        """Remove a queue."""
        self.check("obliterate")
        self._own(queue)
        return await self._store.obliterate(
            queue, force=force, limit=min(limit, _MAX_LIMIT), actor=self._actor(actor)
        )

    async def restore(self, records: Sequence[JobRecord]) -> list[bool]:
        """Store failed jobs of another store."""
        self.check("restore")
        for record in records:
            self._own(record.queue)
            self._own_all(job.queue for job in (*record.parents, *record.children))
        return await self._store.restore(records)

    async def put_schedule(
        self, spec: ScheduleSpec, *, next_ms: int | None, actor: str | None = None
    ) -> ScheduleRecord:
        """Store a schedule."""
        self.check("put_schedule")
        self._own(spec.queue)
        self._own_spec(spec.template)
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
        limit = min(limit, _MAX_LIMIT)
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

    # ── reading ───────────────────────────────────────────────────────────────────────────────────

    async def get(self, jobs: Sequence[JobKey]) -> list[JobRecord | None]:
        """Jobs as they are now. None for jobs of other tenants."""
        self.check("get")
        own = [self._is_own(job.queue.tenant) for job in jobs]
        mine = list(compress(jobs, own))
        found = await self._store.get(mine) if mine else []
        return _in_place(own, found, None)

    async def find(self, filter: Filter, *, cursor: str | None = None, limit: int = 100) -> Page:
        """Jobs of a queue."""
        self.check("find")
        self._own(filter.queue)
        return await self._store.find(filter, cursor=cursor, limit=min(limit, _MAX_LIMIT))

    async def count(self, queue: QueueName) -> dict[State, int]:
        """How many jobs are in each state."""
        self.check("count")
        self._own(queue)
        return await self._store.count(queue)

    async def stats(self, queue: QueueName) -> StatsRecord:
        """The queue at a glance."""
        self.check("stats")
        self._own(queue)
        return await self._store.stats(queue)

    async def holds(self, queue: QueueName, *, limit: int = MAX_LISTED) -> HoldsRecord:
        """The holds in force."""
        self.check("holds")
        self._own(queue)
        return await self._store.holds(queue, limit=min(limit, _MAX_LIMIT))

    async def find_lock(self, queue: QueueName, lock: str) -> LockRecord | None:
        """Who holds a unique lock."""
        self.check("find_lock")
        self._own(queue)
        return await self._store.find_lock(queue, lock)

    async def metrics(self, queue: QueueName, *, minutes: int = 60) -> list[MinuteRecord]:
        """The last minutes."""
        self.check("metrics")
        self._own(queue)
        return await self._store.metrics(queue, minutes=min(minutes, _MAX_LIMIT))

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

    # ── workers ───────────────────────────────────────────────────────────────────────────────────

    async def beat(self, worker: WorkerRecord, *, ttl_ms: int, displace: bool = False) -> Beat:
        """Announce a worker."""
        self.check("beat")
        self._own_all(worker.queues)
        name = self._named(worker.name)
        if name != worker.name:
            worker = replace(worker, name=name)
        return await self._store.beat(worker, ttl_ms=ttl_ms, displace=displace)

    async def retire(self, worker: str, *, incarnation: str | None = None) -> None:
        """Remove a worker."""
        self.check("retire")
        await self._store.retire(self._named(worker), incarnation=incarnation)

    async def workers(self, queue: QueueName | None = None) -> list[WorkerRecord]:
        """Workers that serve a queue of the tenant, without their queues of other tenants."""
        self.check("workers")
        mine = self.principal.tenant
        if queue is not None:
            self._own(queue)
        found = await self._store.workers(queue)
        if mine is None:
            return found
        seen = [
            replace(each, queues=tuple(name for name in each.queues if name.tenant == mine))
            for each in found
        ]
        return [each for each in seen if each.queues]

    async def ask_worker(self, name: str, request: WorkerRequest) -> bool:
        """Leave a request for a worker of the tenant."""
        self.check("ask_worker")
        return await self._store.ask_worker(self._named(name), request)

    async def lead(self, name: str, *, who: str, ttl_ms: int) -> bool:
        """Become or stay the leader of `name`, within the tenant."""
        self.check("lead")
        return await self._store.lead(self._named(name), who=who, ttl_ms=ttl_ms)

    # ── the event log ─────────────────────────────────────────────────────────────────────────────

    async def read_events(
        self,
        queue: QueueName,
        *,
        after: str | None = None,
        limit: int = 1000,
        until: str | None = None,
    ) -> EventPage:
        """Events after a position."""
        self.check("read_events")
        self._own(queue)
        return await self._store.read_events(
            queue, after=after, limit=min(limit, _MAX_LIMIT), until=until
        )

    async def ack_events(self, queue: QueueName, reader: str, position: str | None) -> str | None:
        """The position of a reader. Moving a reader needs admin."""
        self.check("ack_events")
        if position is not None and not self.principal.may(_ADMIN):
            self._refuse("ack_events with a position", _ADMIN)
        self._own(queue)
        return await self._store.ack_events(queue, reader, position)

    async def readers(self, queue: QueueName) -> dict[str, str]:
        """The registered readers."""
        self.check("readers")
        self._own(queue)
        return await self._store.readers(queue)

    async def remove_reader(self, queue: QueueName, reader: str) -> bool:
        """Remove a reader."""
        self.check("remove_reader")
        self._own(queue)
        return await self._store.remove_reader(queue, reader)

    # ── the handle ────────────────────────────────────────────────────────────────────────────────

    async def migrate(self) -> None:
        """Nothing: the server has opened its store."""

    async def aclose(self) -> None:
        """Nothing: the server closes its store."""

    async def tick(self, *, limit: int = 500) -> int:
        """Do upkeep in all queues. Nothing for a caller of one tenant: the server does it."""
        self.check("tick")
        if self.principal.tenant is not None:
            return 0
        return await self._store.tick(limit=min(limit, _MAX_LIMIT))

    async def __aenter__(self) -> Self:
        """Nothing: the server has opened its store."""
        return self

    async def __aexit__(
        self, t: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        """Nothing: the server closes its store."""


def _in_place(own: Sequence[bool], replies: Iterable[_R], otherwise: _R) -> list[_R]:
    """Replies in the order of what was asked, with `otherwise` for what was not passed on."""
    rest = iter(replies)
    return [next(rest) if passed else otherwise for passed in own]
