"""The calls that run for every job, for one principal."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import compress

from msgspec.structs import replace

from jobq.client.session import batches
from jobq.core.checks import check_id
from jobq.core.new_jobs import Checked, check_specs
from jobq.core.records import (
    AnyOutcome,
    Block,
    Claim,
    JobKey,
    JobRecord,
    JobSpec,
    LeaseRef,
    LeaseState,
    Note,
    PutResult,
    QueueName,
    Settled,
    Signal,
    Topic,
)
from jobq.errors import JobNotFound, JobqError, StoreUnavailable
from jobq.server.guarded.rules import READ, Guard, bounded, in_place
from jobq.server.parts import check_parts
from jobq.server.specs import check_outcome, check_span, check_word
from jobq.stores.base import pipeline_of


class GuardedHot(Guard):
    """HotStore and SignalStore."""

    async def put(
        self, specs: Sequence[JobSpec], *, flow: str | None = None, last: bool = True
    ) -> list[PutResult]:
        """Accept jobs. A caller without the scope `read` does not see the job of a duplicate."""
        specs = self._checked(specs, flow, whole=flow is None)
        if self._tenants.unlimited:
            results = await self._store.put(specs, flow=flow, last=last)
        else:
            async with self._admitted(specs, flow):
                results = await self._put(specs, flow, last)
        return self._shown(results)

    async def put_all(
        self, specs: Sequence[JobSpec], *, step: int, flow: str | None = None
    ) -> list[PutResult | JobqError]:
        """Accept jobs in several puts of up to `step` jobs. Nothing is stored if one is refused.

        All of them are checked before the first put, also against quotas and queues. If a queue
        changes meanwhile, the store may still refuse a later put: the error is then the result of
        each of its jobs, and the jobs of earlier puts stay. A flow is refused as a whole.
        """
        specs = self._checked(specs, flow)
        parts = list(batches(specs, step))
        if flow is None:
            await check_parts(self._store, specs, steps=len(parts))
        results: list[PutResult | JobqError] = []
        async with self._admitted(specs, flow):
            for n, part in enumerate(parts, 1):
                try:
                    results += self._shown(await self._put(Checked(part), flow, n == len(parts)))
                except StoreUnavailable:
                    raise
                except JobqError as error:
                    if flow is not None or n == 1:
                        raise
                    results += [error] * len(part)
        return results

    def _checked(
        self, specs: Sequence[JobSpec], flow: str | None, *, whole: bool = True
    ) -> Sequence[JobSpec]:
        """The specs of the caller's tenant. A part of a flow is left to the store to check: with a
        job that it refuses, it discards what it has of the flow."""
        self.check("put")
        if flow is not None:
            check_id(flow, "flow")
        if whole:
            specs = check_specs(specs)
        tenant = self.principal.tenant
        if tenant is not None:
            for spec in specs:
                if spec.queue.tenant != tenant:
                    self._own(spec.queue)
        return specs

    @asynccontextmanager
    async def _admitted(self, specs: Sequence[JobSpec], flow: str | None) -> AsyncIterator[None]:
        """Inside the context, quotas count the jobs as being stored."""
        if self._tenants.unlimited:
            yield
            return
        await self._tenants.admit(self._store, specs, flow=flow)
        try:
            yield
        finally:
            self._tenants.done(specs)

    async def _put(self, specs: Sequence[JobSpec], flow: str | None, last: bool) -> list[PutResult]:
        """Put jobs that quotas admitted."""
        try:
            results = await self._store.put(specs, flow=flow, last=last)
        except StoreUnavailable:  # whether the flow is still staged is not known
            raise
        except JobqError:
            self._tenants.refused(specs, flow)
            raise
        if flow is not None and not self._tenants.unlimited:
            self._tenants.staged(specs, flow, last=last)
        return results

    def _shown(self, results: list[PutResult]) -> list[PutResult]:
        """The results as the caller may see them."""
        if self.principal.may(READ):
            return results
        return [replace(each, found=None) if each.found else each for each in results]

    async def settle(
        self, outcomes: Sequence[AnyOutcome], *, worker: str, call: str, then: Claim | None = None
    ) -> Settled:
        """Apply outcomes, and claim. Outcomes of another tenant's jobs are stale."""
        self.check("settle")
        check_word(call, "call")
        for each in outcomes:
            if isinstance(each, Block):
                self._own_edges(each.after)
            check_outcome(each)
        if then is not None:
            self._own_all(then.queues)
            check_span(then.lease_ms, "lease_ms", least=1)
            await self._tenants.admit_queues(self._store, then.queues)
            if then.limit != (limit := bounded(then.limit)):
                then = replace(then, limit=limit)
        if self.principal.tenant is None:
            return await self._store.settle(outcomes, worker=worker, call=call, then=then)
        mine: list[AnyOutcome] = []
        others: list[LeaseRef] = []
        for each in outcomes:
            if self._is_own(each.queue.tenant):
                mine.append(each)
            else:
                others.append(LeaseRef(each.queue, each.id, each.token))
        settled = await self._store.settle(mine, worker=self._named(worker), call=call, then=then)
        return replace(settled, stale=(*settled.stale, *others)) if others else settled

    async def extend(self, leases: Sequence[LeaseRef], *, lease_ms: int) -> list[LeaseState]:
        """Renew leases. Those of other tenants are lost."""
        self.check("extend")
        check_span(lease_ms, "lease_ms", least=1)
        own = [self._is_own(lease.queue.tenant) for lease in leases]
        mine = list(compress(leases, own))
        states = await self._store.extend(mine, lease_ms=lease_ms) if mine else []
        return in_place(own, states, "lost")

    async def note(self, notes: Sequence[Note]) -> list[LeaseState]:
        """Store notes. Leases of other tenants are lost."""
        self.check("note")
        own = [self._is_own(note.lease.queue.tenant) for note in notes]
        mine = list(compress(notes, own))
        states = await self._store.note(mine) if mine else []
        return in_place(own, states, "lost")

    async def sleep(
        self, queues: Sequence[QueueName], *, worker: str, slots: int, timeout_ms: int
    ) -> bool:
        """Wait for work."""
        self.check("sleep")
        self._own_all(queues)
        check_span(timeout_ms, "timeout_ms")
        await self._tenants.admit_queues(self._store, queues)
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
