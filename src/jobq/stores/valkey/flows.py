"""Flows: members are staged until the flow is submitted.

The queues of a flow may be on different nodes, so no single step covers all of them. A flow is
submitted when its manifest says so, which is one step on one node. Each queue then brings in its
members in steps of bounded size, which any caller may repeat: the submitter, or a tick.
"""

from __future__ import annotations

import time
from collections import ChainMap, Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

from jobq.core.records import refusals
from jobq.core.records.defaults import FLOW_MS
from jobq.core.records.event_log import STATE_CODES
from jobq.core.records.jobs import Edge, JobKey, JobSpec, PutResult
from jobq.core.records.states import State
from jobq.core.rules.flows import Lock, check_locks
from jobq.core.rules.new_jobs import check_queue, check_specs
from jobq.errors import ConfigError, JobqError, StoreUnavailable
from jobq.stores.valkey import jobs, keys, packing
from jobq.stores.valkey.calls import Calls, PartitionsChanged, Refused
from jobq.stores.valkey.connection import Argument
from jobq.stores.valkey.jobs import put_result, refuse
from jobq.stores.valkey.mail import Mail
from jobq.stores.valkey.partitions import Partitions

# Edges between jobs: where the jobs are that others wait for.

_BATCH = 500
"""Jobs that one call looks up: the server does nothing else meanwhile."""


class Edges:
    """Finds the jobs that edges name."""

    def __init__(self, calls: Calls, partitions: Partitions) -> None:
        self._calls = calls
        self._partitions = partitions

    async def check(self, specs: Sequence[JobSpec]) -> dict[JobKey, str]:
        """The prefixes of the jobs that these wait for.

        InvalidJob if one of them does not exist.
        """
        waited = {edge.job for spec in specs for edge in spec.after}
        if not waited:
            return {}
        for spec in specs:
            await self._partitions.count(spec.queue)
        own = {
            JobKey(spec.queue, spec.id): self._partitions.prefix_of(spec.queue, spec.id, spec.key)
            for spec in specs
        }
        known = own | await self.locate(waited - own.keys())
        for spec in specs:
            for edge in spec.after:
                check_edge(spec.id, spec.queue.tenant, edge.job, known)
        return known

    async def locate(self, jobs: Iterable[JobKey]) -> dict[JobKey, str]:
        """The prefixes of jobs. Jobs that do not exist are left out."""
        listed = list(jobs)
        found: dict[JobKey, str] = {}
        for prefix, positions in (await self._partitions.prefixes_of(listed)).items():
            for start in range(0, len(positions), _BATCH):
                some = positions[start : start + _BATCH]
                ids = (listed[n].id for n in some)
                known = await self._calls.fcall("known", prefix, self._calls.now(), *ids)
                found |= {listed[n]: prefix for n, yes in zip(some, known, strict=True) if yes}
        return found


def check_edge(id: str, tenant: str, child: JobKey, known: Container[JobKey]) -> None:
    """Raise InvalidJob unless the child is known and of the job's tenant.

    A job of another tenant is refused with the same words as a job that does not exist.
    """
    if child not in known or child.queue.tenant != tenant:
        raise refusals.unknown_child(id, child)


"""Members and edges per call: the server does nothing else meanwhile."""
SETTLING_MS = 10_000
"""Ticks look at flows that were staged longer ago: the submitter may have died in between."""

Answers = dict[tuple[str, str], list[Any]]
"""What the function `submit` replied, by prefix and id."""


class Flows:
    """Stages and submits flows."""

    def __init__(self, calls: Calls, partitions: Partitions, mail: Mail, edges: Edges) -> None:
        self._calls = calls
        self._partitions = partitions
        self._mail = mail
        self._edges = edges
        self.drafts: dict[tuple[str, str], _Draft] = {}
        """Flows that this handle has staged and not submitted, by tenant and name."""

    async def put(self, specs: Sequence[JobSpec], flow: str, last: bool) -> list[PutResult]:
        """Stage members. With the last ones, submit the flow."""
        if not specs:
            raise refusals.empty_flow(flow)
        tenant = check_queue(specs[0].queue).tenant
        self._draft(tenant, flow).enter(specs[0])
        try:
            specs = check_specs(specs)
        except JobqError:
            await self._give_up(flow, tenant)
            raise
        try:
            return await self._put(specs, flow, last)
        except PartitionsChanged:
            self._partitions.forget_all()
        try:
            return await self._put(specs, flow, last)
        except PartitionsChanged as e:
            if not await self._give_up(flow, tenant):
                raise ConfigError(
                    f"queue {e} was given partitions while flow {flow!r} was being staged, and "
                    "nothing of the flow was stored: submit it again"
                ) from None
        return await self._put(specs, flow, last)  # another caller has submitted it

    async def _put(self, specs: Sequence[JobSpec], flow: str, last: bool) -> list[PutResult]:
        tenant = specs[0].queue.tenant
        prefixes = [await self._prefix(spec) for spec in specs]
        draft = self._draft(tenant, flow)
        verb = "begin" if draft.begins(specs[0]) else "stage"
        state, *_ = await self._manifest(tenant, flow, verb, *dict.fromkeys(prefixes))
        if state == b"open":
            try:
                check_locks(specs, draft.locks)
                await self._stage(specs, prefixes, flow, draft)
                draft.add(specs, prefixes)
                if last:
                    await self._check(draft)
                    await self._seal(flow, draft)
                    state, *_ = await self._manifest(tenant, flow, "submit")
            except StoreUnavailable:
                raise  # the outcome is unknown; staged members wait until the call is repeated
            except JobqError:
                if not await self._give_up(flow, tenant):
                    raise
                state = b"done"  # another caller, which repeats these calls, has submitted it
        if state == b"swept":
            self._leave(tenant, flow)
            raise refusals.swept_flow(flow)
        if not last:
            return [
                PutResult(id=s.id, life=0, state=State.BLOCKED if s.after else State.WAITING)
                for s in specs
            ]
        answers = await self._bring_in(tenant, flow)
        if draft.outside or any(len(answer) > 4 for answer in answers.values()):
            await self._correct_states(answers)
        self.drafts.pop((tenant, flow), None)
        return await self._results(specs, prefixes, answers)

    # ── staging ───────────────────────────────────────────────────────────────────────────────────

    def _draft(self, tenant: str, flow: str) -> _Draft:
        """What this handle knows about the flow.

        Drafts of flows that were swept since are dropped.
        """
        now = time.monotonic()
        for name in [n for n, draft in self.drafts.items() if draft.since < now - FLOW_MS / 1000]:
            del self.drafts[name]
        return self.drafts.setdefault((tenant, flow), _Draft(tenant, now))

    def _leave(self, tenant: str, flow: str) -> None:
        """A call was refused: nothing is staged. Other callers may be in the middle of the flow."""
        draft = self.drafts.pop((tenant, flow), None)
        if draft is not None and draft.callers > 1:
            self.drafts[tenant, flow] = _Draft(
                tenant, draft.since, first=draft.first, callers=draft.callers - 1
            )

    async def _manifest(self, tenant: str, flow: str, verb: str, *prefixes: str) -> Any:
        """Ask the one place that decides whether a flow is submitted (see lua/manifest.lua)."""
        key = self._partitions.space.manifest(tenant, flow)
        confirmed = verb == "submit"
        return await self._calls.fcall("manifest", key, verb, *prefixes, confirmed=confirmed)

    async def _give_up(self, flow: str, tenant: str) -> bool:
        """Remove everything that was staged of a refused flow. Returns True if the flow is
        submitted: then it stays."""
        self._leave(tenant, flow)
        state, *prefixes = await self._manifest(tenant, flow, "sweep")
        if state == b"done":
            return True
        await self._discard(flow, [prefix.decode() for prefix in prefixes])
        await self._manifest(tenant, flow, "forget")
        return False

    async def _prefix(self, spec: JobSpec) -> str:
        await self._partitions.register(spec.queue)
        await self._partitions.count(spec.queue)
        return self._partitions.prefix_of(spec.queue, spec.id, spec.key)

    async def _stage(
        self, specs: Sequence[JobSpec], prefixes: list[str], flow: str, draft: _Draft
    ) -> None:
        own = {JobKey(s.queue, s.id): prefix for s, prefix in zip(specs, prefixes, strict=True)}
        known = ChainMap(own, draft.prefixes)
        outside = {e.job for s in specs for e in s.after if e.job not in known}
        where = ChainMap(await self._edges.locate(outside), own, draft.prefixes)
        for prefix in dict.fromkeys(prefixes):
            mine = [spec for spec, at in zip(specs, prefixes, strict=True) if at == prefix]
            for some in _steps(mine):
                await self._stage_at(prefix, some, flow, where)

    async def _stage_at(
        self, prefix: str, specs: Sequence[JobSpec], flow: str, where: Mapping[JobKey, str]
    ) -> None:
        if jobs.too_large(specs):
            middle = len(specs) // 2
            await self._stage_at(prefix, specs[:middle], flow, where)
            await self._stage_at(prefix, specs[middle:], flow, where)
            return

        def packed(edges: Sequence[Edge]) -> bytes:
            return packing.encode_edges(
                edges, lambda job: where.get(job) or self._partitions.space.prefix(job.queue)
            )

        args: list[Argument] = [self._calls.now(), flow, *_kinds(specs)]
        for spec in specs:
            body, _ = jobs.body_of(spec, None)
            first = packed(spec.after[:_BATCH]) if spec.after else b""
            args += (spec.id, body, first, int(len(spec.after) > _BATCH))
        try:
            sealed = await self._calls.fcall("stage", prefix, *args)
        except Refused as e:
            refuse(e, specs)
        if sealed:  # these are jobs already, or another caller has staged other members
            raise refusals.swept_flow(flow)
        for spec in specs:
            for start in range(_BATCH, len(spec.after), _BATCH):
                some = packed(spec.after[start : start + _BATCH])
                more = int(start + _BATCH < len(spec.after))
                await self._calls.fcall("stage_edges", prefix, flow, spec.id, some, more)

    async def _check(self, draft: _Draft) -> None:
        known = ChainMap(await self._edges.locate(draft.outside), draft.prefixes)
        for edge, id in draft.edges.items():
            check_edge(id, draft.tenant, edge.job, known)

    async def _seal(self, flow: str, draft: _Draft) -> None:
        """Check once more that the members fit their queues, and fix modes that are unset. After
        that nobody can add members to the flow."""
        members = Counter(draft.prefixes.values())
        for prefix, samples in draft.samples.items():
            specs = list(samples.values())
            args = (self._calls.now(), flow, members[prefix], *_kinds(specs))
            try:
                reply = await self._calls.fcall("seal", prefix, *args)
            except Refused as e:
                refuse(e, specs)
            if reply == b"gone":  # another caller has submitted or discarded the flow
                raise refusals.swept_flow(flow)
            if reply:
                await self._partitions.register(specs[0].queue, again=True)

    async def _discard(self, flow: str, prefixes: Iterable[str]) -> None:
        for prefix in prefixes:
            messages, to_wake = await self._calls.fcall("discard", prefix, self._calls.now(), flow)
            queue = keys.queue_of(prefix)
            await self._mail.after(queue, prefix, to_wake=to_wake, messages=messages)

    # ── submitting ────────────────────────────────────────────────────────────────────────────────

    async def _bring_in(self, tenant: str, flow: str) -> Answers:
        """Make the members of a submitted flow visible, by calls of bounded size that can be
        repeated.

        Members that wait come first. The jobs they wait for know of them before any of those can
        start.
        """
        answers: Answers = {}
        _, *found = await self._manifest(tenant, flow, "look")
        prefixes = [prefix.decode() for prefix in found]
        for which in ("tied", "free"):
            for prefix in prefixes:
                answers |= await self._bring_in_at(prefix, flow, which)
            for prefix in prefixes:
                await self._mail.pump(prefix)
        if prefixes:
            await self._manifest(tenant, flow, "settled")
        return answers

    async def _bring_in_at(self, prefix: str, flow: str, which: str) -> Answers:
        answers: Answers = {}
        more = True
        while more:
            to_wake, _, due_in, some, ids, more = await self._calls.fcall(
                "submit", prefix, self._calls.now(), flow, which, confirmed=True
            )
            answers |= {(prefix, id.decode()): one for id, one in zip(ids, some, strict=True)}
            await self._mail.after(keys.queue_of(prefix), prefix, to_wake=to_wake, due_in=due_in)
        return answers

    async def _correct_states(self, answers: Answers) -> None:
        """Read blocked members again.

        Jobs they waited for may have ended before: those do not block.
        """
        blocked: dict[str, list[str]] = {}
        for (prefix, id), answer in answers.items():
            if answer[3] == STATE_CODES[State.BLOCKED] and len(answer) == 4:
                blocked.setdefault(prefix, []).append(id)
        for prefix, ids in blocked.items():
            for id, view in zip(ids, await self._views(prefix, ids), strict=True):
                if view:
                    answers[prefix, id][3] = view[1]

    async def _views(self, prefix: str, ids: Sequence[str]) -> list[Any]:
        found: list[Any] = []
        for start in range(0, len(ids), _BATCH):
            part = ids[start : start + _BATCH]
            found += await self._calls.fcall("get", prefix, self._calls.now(), *part)
        return found

    async def _results(
        self, specs: Sequence[JobSpec], prefixes: list[str], answers: Answers
    ) -> list[PutResult]:
        missing: dict[str, list[str]] = {}
        for spec, prefix in zip(specs, prefixes, strict=True):
            if (
                prefix,
                spec.id,
            ) not in answers:  # an earlier call brought it in: return it as it is
                missing.setdefault(prefix, []).append(spec.id)
        for prefix, ids in missing.items():
            for id, view in zip(ids, await self._views(prefix, ids), strict=True):
                state = view[1] if view else STATE_CODES[State.COMPLETED]
                answers[prefix, id] = [0, id.encode(), 0, state, view or []]
        return [
            put_result(s.queue, answers[prefix, s.id])
            for s, prefix in zip(specs, prefixes, strict=True)
        ]

    # ── upkeep ────────────────────────────────────────────────────────────────────────────────────

    async def settle_staged(self, prefix: str) -> int:
        """Bring in flows that were submitted, and sweep those that never were. Returns how many."""
        now = int(self._calls.now() or time.time() * 1000)
        staged = await self._calls.fcall("staged", prefix, now - SETTLING_MS, 100)
        tenant = keys.queue_of(prefix).tenant
        settled = 0
        for name, begun in zip(staged[::2], staged[1::2], strict=True):
            flow = name.decode()
            verb = "sweep" if float(begun) < now - FLOW_MS else "look"
            state, *found = await self._manifest(tenant, flow, verb, prefix)
            prefixes = {each.decode() for each in found}
            if state == b"done" and prefix in prefixes:
                await self._bring_in(tenant, flow)
            elif state == b"done":  # all members are stored: a late call has staged them again
                await self._discard(flow, [prefix])
            elif state == b"swept":
                await self._discard(flow, {prefix, *prefixes})
            else:
                continue
            settled += 1
        return settled


class _Draft:
    """What this handle knows about a flow that it stages."""

    def __init__(
        self, tenant: str, since: float, *, first: JobKey | None = None, callers: int = 0
    ) -> None:
        self.tenant = tenant
        self.since = since
        self.first = first
        """The first member of the first call. Later calls must find the flow staged."""
        self.callers = callers
        """Calls that began the flow. Two callers may submit it through one handle."""
        self.prefixes: dict[JobKey, str] = {}
        self.edges: dict[Edge, str] = {}
        self.locks: dict[Lock, str] = {}
        self.samples: dict[str, dict[bool, JobSpec]] = {}
        """Per prefix, of the members with a key and of those without, the one that costs most."""

    def enter(self, spec: JobSpec) -> None:
        """Count a call that begins the flow: its first member is `spec`."""
        job = JobKey(spec.queue, spec.id)
        self.first = self.first or job
        self.callers += self.first == job

    def begins(self, spec: JobSpec) -> bool:
        """Whether a call whose first member is `spec` may begin the flow."""
        return not self.prefixes and self.first in (None, JobKey(spec.queue, spec.id))

    def add(self, specs: Sequence[JobSpec], prefixes: list[str]) -> None:
        for spec, prefix in zip(specs, prefixes, strict=True):
            self.prefixes[JobKey(spec.queue, spec.id)] = prefix
            self.edges |= dict.fromkeys(spec.after, spec.id)
            samples = self.samples.setdefault(prefix, {})
            if spec.cost > getattr(samples.get(spec.key is not None), "cost", 0):
                samples[spec.key is not None] = spec

    @property
    def outside(self) -> set[JobKey]:
        """Jobs that members wait for and that are not members themselves."""
        return {edge.job for edge in self.edges} - self.prefixes.keys()


def _steps(specs: Sequence[JobSpec]) -> Iterator[list[JobSpec]]:
    """The members of each call: _BATCH members and edges, of which a member brings _BATCH."""
    some: list[JobSpec] = []
    cost = 0
    for spec in specs:
        weight = 1 + min(len(spec.after), _BATCH)
        if some and cost + weight > _BATCH:
            yield some
            some, cost = [], 0
        some.append(spec)
        cost += weight
    if some:
        yield some


def _kinds(specs: Sequence[JobSpec]) -> tuple[int, int, int]:
    """The positions of the first plain and first keyed job (0 for none), and the highest cost."""
    plain = next((n for n, s in enumerate(specs, 1) if s.key is None), 0)
    keyed = next((n for n, s in enumerate(specs, 1) if s.key is not None), 0)
    return plain, keyed, max(s.cost for s in specs)
