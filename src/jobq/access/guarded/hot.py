"""The calls that run for every job, for one principal."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import compress

from msgspec.structs import replace

from jobq.access.guarded.rules import MAX_LIMIT, READ, Guard, aligned, bounded
from jobq.access.input_checks import check_outcome, check_parts, check_span, check_word
from jobq.access.quotas import ROOM_MS
from jobq.client.connection import batches
from jobq.core.records.defaults import LOG_LINES, LONGEST_LINE
from jobq.core.records.failures import bounded_failure
from jobq.core.records.jobs import (
    AnyOutcome,
    Block,
    Claim,
    Complete,
    Fail,
    Failure,
    JobKey,
    JobRecord,
    JobSpec,
    LeaseRef,
    LeaseState,
    Note,
    PutResult,
    QueueName,
    RetryLater,
    Settled,
    Signal,
    SnoozeFor,
    Topic,
    lane_of,
)
from jobq.core.rules.new_jobs import Checked, check_specs
from jobq.core.values.checks import MAX_ID_LENGTH, MAX_STEPS, check_id, check_step_size
from jobq.core.values.printable import one_line
from jobq.errors import InvalidJob, JobNotFound, JobqError, PayloadTooLarge, StoreUnavailable
from jobq.stores.base import pipeline_of

log = logging.getLogger("jobq.server")

_MAX_TOKEN = 4_096
"""Characters of the token of a lease, which contains the names of the worker and its call."""
_REFUSED = PutResult(id="", life=0, state=None)


class GuardedHot(Guard):
    """HotStore and SignalStore."""

    async def put(
        self, specs: Sequence[JobSpec], *, flow: str | None = None, last: bool = True
    ) -> list[PutResult]:
        """Accept jobs. A caller without the scope `read` does not see the job of a duplicate."""
        specs = self._checked(specs, flow, whole=flow is None)
        if self._tenants.unlimited:  # the hot path: nothing is counted
            return self._shown(await self._store.put(specs, flow=flow, last=last))
        async with self._admitted(specs, flow) as stored:
            stored += await self._put(specs, flow, last)
        return self._shown(stored)

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
        async with self._admitted(specs, flow) as stored:
            for n, part in enumerate(parts, 1):
                try:
                    found = await self._put(Checked(part), flow, n == len(parts))
                    stored += found
                    results += self._shown(found)
                except StoreUnavailable:
                    raise
                except JobqError as error:
                    if flow is not None or n == 1:
                        raise
                    results += [error] * len(part)
                    stored += [_REFUSED] * len(part)
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
    async def _admitted(
        self, specs: Sequence[JobSpec], flow: str | None
    ) -> AsyncIterator[list[PutResult]]:
        """Inside the context, quotas count the jobs as being stored. It fills in the results."""
        results: list[PutResult] = []
        reservation = await self._tenants.admit(self._store, specs, flow=flow)
        try:
            yield results
        except BaseException as error:
            refused = isinstance(error, JobqError) and not isinstance(error, StoreUnavailable)
            reservation.end(_stored(specs, results) if refused else None)
            raise
        reservation.end(_stored(specs, results) if flow is None else None)

    async def _put(self, specs: Sequence[JobSpec], flow: str | None, last: bool) -> list[PutResult]:
        """Put jobs that quotas admitted."""
        try:
            results = await self._store.put(specs, flow=flow, last=last)
        except StoreUnavailable:  # whether the flow is still staged is not known
            raise
        except JobqError:
            self._tenants.refused(specs, flow)
            raise
        if flow is not None:
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
        if len(outcomes) > MAX_LIMIT:
            raise InvalidJob(f"{len(outcomes):,} outcomes are more than {MAX_LIMIT:,} in one call")
        tenant = self.principal.tenant
        mine: list[AnyOutcome] = []
        others: list[LeaseRef] = []
        for outcome in map(self._bounded_outcome, outcomes):
            if isinstance(outcome, Block):
                self._own_edges(outcome.after)
            check_outcome(outcome)
            if tenant is None or outcome.queue.tenant == tenant:
                mine.append(outcome)
            else:
                others.append(LeaseRef(outcome.queue, outcome.id, outcome.token))
        if then is not None:
            self._own_all(then.queues)
            check_span(then.lease_ms, "lease_ms", least=1)
            await self._tenants.admit_queues(self._store, then.queues)
            if then.limit != (limit := bounded(then.limit)):
                then = replace(then, limit=limit)
        if tenant is not None:
            worker = self._named(worker)
        settled = await self._settle(mine, worker=worker, call=call, then=then)
        return replace(settled, stale=(*settled.stale, *others)) if others else settled

    def _bounded_outcome(self, outcome: AnyOutcome) -> AnyOutcome:
        """The outcome, with no more bytes than the job may store.

        A result or a saved state that is too large fails its job: a refusal would keep the other
        outcomes of the call from being settled.
        """
        if len(outcome.id) > MAX_ID_LENGTH or len(outcome.token) > _MAX_TOKEN:
            raise InvalidJob("an outcome has an id or a token that is longer than any lease has")
        if isinstance(outcome, RetryLater | Fail):
            failure = bounded_failure(outcome.failure)
            return outcome if failure is outcome.failure else replace(outcome, failure=failure)
        what, data = ("result", outcome.result) if isinstance(outcome, Complete) else ("", None)
        if isinstance(outcome, Block | SnoozeFor):
            what, data = "saved state", outcome.saved
        try:
            self._tenants.check_payload(outcome.queue.tenant, len(data or b""), what)
        except PayloadTooLarge as error:
            failure = Failure(
                reason="error",
                type=PayloadTooLarge.__name__,
                message=str(error),
                at_ms=self._now_ms(),
            )
        else:
            return outcome
        # The worker believes that the run ended as it reported.
        log.warning("job %s failed: %s", one_line(outcome.id), failure.message)
        return Fail(queue=outcome.queue, id=outcome.id, token=outcome.token, failure=failure)

    async def _settle(
        self, outcomes: Sequence[AnyOutcome], *, worker: str, call: str, then: Claim | None
    ) -> Settled:
        """Settle, and claim no more than `max_active` of the tenants allows."""
        if not self._tenants.bounds_active:
            return await self._store.settle(outcomes, worker=worker, call=call, then=then)
        ending = [LeaseRef(each.queue, each.id, each.token) for each in outcomes]
        allowed, starts = await self._tenants.admit_claim(self._store, then, ending)
        if allowed is not None:
            allowed = self._as_before(allowed, worker, call)
        settled: Settled | None = None
        try:
            settled = await self._store.settle(outcomes, worker=worker, call=call, then=allowed)
        finally:
            starts.end(settled)
        if then is None or allowed is None or allowed.limit or not then.limit or settled.leases:
            return settled
        # `sleep` waits until the tenant may start a job again, or for this long.
        due_ms = min(ROOM_MS, ROOM_MS if settled.next_due_ms is None else settled.next_due_ms)
        return replace(settled, asleep=True, next_due_ms=max(due_ms, 1))

    def _as_before(self, claim: Claim, worker: str, call: str) -> Claim:
        """The claim. A repeated call names the same queues, or the store would not find its leases.

        Only a claim for several tenants may name fewer queues than its worker asked for.
        """
        if self.principal.tenant is not None:
            return claim
        last = self._claims.get(lane := (worker, lane_of(call)))
        if last is not None and last[0] == call:
            return replace(claim, queues=last[1])
        if len(self._claims) >= MAX_LIMIT:
            self._claims.clear()
        self._claims[lane] = call, claim.queues
        return claim

    async def extend(self, leases: Sequence[LeaseRef], *, lease_ms: int) -> list[LeaseState]:
        """Renew leases. Those of other tenants are lost."""
        self.check("extend")
        check_span(lease_ms, "lease_ms", least=1)
        own = [self._is_own(lease.queue.tenant) for lease in leases]
        mine = list(compress(leases, own))
        states = await self._store.extend(mine, lease_ms=lease_ms) if mine else []
        if self._tenants.bounds_active:
            self._tenants.extended(compress(mine, (state != "lost" for state in states)), lease_ms)
        return aligned(own, states, "lost")

    async def note(self, notes: Sequence[Note]) -> list[LeaseState]:
        """Store notes. Leases of other tenants are lost."""
        self.check("note")
        own = [self._is_own(note.lease.queue.tenant) for note in notes]
        mine = [self._bounded_note(note) for note in compress(notes, own)]
        await self._check_steps([note for note in mine if note.steps])
        states = await self._store.note(mine) if mine else []
        return aligned(own, states, "lost")

    def _bounded_note(self, note: Note) -> Note:
        """The note, with no more lines than are kept. PayloadTooLarge names what is too large."""
        tenant = note.lease.queue.tenant
        for data in (note.progress, note.saved):
            if data is not None:
                self._tenants.check_payload(tenant, len(data))
        if len(note.lines) > LOG_LINES or any(len(line) > LONGEST_LINE for line in note.lines):
            return replace(
                note, lines=tuple(each[:LONGEST_LINE] for each in note.lines[-LOG_LINES:])
            )
        return note

    async def _check_steps(self, notes: Sequence[Note]) -> None:
        """InvalidJob if a job would have too many steps, PayloadTooLarge if they are too large.

        Workers count the steps of the jobs that they run (core/rules/waits.py), but not all
        clients do.
        """
        added: dict[JobKey, dict[str, bytes]] = {}
        for note in notes:
            added.setdefault(JobKey(note.lease.queue, note.lease.id), {}).update(note.steps)
        found = await self._store.get(list(added)) if added else []
        for (job, new), record in zip(added.items(), found, strict=True):
            steps = new if record is None else dict(record.steps) | new
            if len(steps) > MAX_STEPS:
                raise InvalidJob(f"job {job.id} has more than {MAX_STEPS:,} steps")
            size = sum(len(name.encode()) + len(data) for name, data in steps.items())
            check_step_size(next(reversed(steps)), size)

    async def sleep(
        self, queues: Sequence[QueueName], *, worker: str, slots: int, timeout_ms: int
    ) -> bool:
        """Wait for work."""
        self.check("sleep")
        self._own_all(queues)
        check_span(timeout_ms, "timeout_ms")
        await self._tenants.admit_queues(self._store, queues)
        if await self._tenants.wait_for_room(queues, timeout_ms):
            return True
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
        return self._listen(own)

    @asynccontextmanager
    async def _listen(self, topics: Sequence[Topic]) -> AsyncIterator[AsyncIterator[Signal]]:
        """Signals for these topics. A store makes a queue that somebody listens to."""
        queues = {topic.queue for topic in topics if topic.queue is not None}
        await self._tenants.admit_queues(self._store, queues)
        async with self._store.listen(topics) as signals:
            yield signals

    @asynccontextmanager
    async def expect(self, job: JobKey) -> AsyncIterator[AsyncIterator[JobRecord | None]]:
        """The end of a job that is put inside the context (see `Pipelined`)."""
        self.check("listen")
        self._own(job.queue)
        if (pipeline := pipeline_of(self._store)) is not None:
            async with pipeline.expect(job) as ends:
                yield ends
        else:
            async with self._listen([Topic("ended", job.queue, job.id)]) as signals:
                yield (None async for _ in signals)


def _stored(specs: Sequence[JobSpec], results: Sequence[PutResult]) -> Counter[str]:
    """How many jobs of each tenant are stored now that were not before."""
    return Counter(
        spec.queue.tenant
        for spec, result in zip(specs, results, strict=False)  # parts may be missing
        if result.state is not None and not result.duplicate
    )
