"""The calls that run for every job, for one principal."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import compress

from msgspec.structs import replace

from jobq.core.checks import check_id
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
from jobq.errors import JobNotFound
from jobq.server.access import CALLS as CALLS
from jobq.server.access import CallRule as CallRule
from jobq.server.guarded.rules import READ, Guard, bounded, in_place
from jobq.server.specs import check_outcome, check_span, check_word
from jobq.stores.base import pipeline_of


class GuardedHot(Guard):
    """HotStore and SignalStore."""

    async def put(
        self, specs: Sequence[JobSpec], *, flow: str | None = None, last: bool = True
    ) -> list[PutResult]:
        """Accept jobs. A caller without the scope `read` does not see the job of a duplicate."""
        self.check("put")
        for spec in specs:
            self._own_spec(spec)
        if flow is not None:
            check_id(flow, "flow")
        if self._tenants.unlimited:
            results = await self._store.put(specs, flow=flow, last=last)
        else:
            await self._tenants.admit(self._store, specs, flow=flow)
            try:
                results = await self._store.put(specs, flow=flow, last=last)
                if flow is not None:
                    self._tenants.staged(specs, flow, last=last)
            except BaseException:
                self._tenants.refused(specs, flow)
                raise
            finally:
                self._tenants.done(specs)
        if not self.principal.may(READ):
            return [replace(each, found=None) if each.found else each for each in results]
        return results

    async def settle(
        self, outcomes: Sequence[AnyOutcome], *, worker: str, call: str, then: Claim | None = None
    ) -> Settled:
        """Apply outcomes, and claim. Outcomes of another tenant's jobs are stale."""
        self.check("settle")
        check_word(call, "call")
        for each in outcomes:
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
