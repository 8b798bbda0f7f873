"""Flows: edges between jobs, members staged until they are submitted, and messages between queues.

Queues may be on different nodes, so nothing here is one step over several of them. A flow is submitted when its manifest
says so, which is one step on one node; each queue then brings in its part, again and again until it has, by whoever
comes by (the submitter, or a tick), in steps of bounded size. What queues tell each other goes by mail.py.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from jobq.core import refusals
from jobq.core.defaults import FLOW_MS
from jobq.core.event_log import STATE_CODES
from jobq.core.graph import Lock, check_locks
from jobq.core.records import Edge, JobKey, JobSpec, PutResult, QueueName
from jobq.core.states import State
from jobq.errors import ConfigError, JobqError, StoreUnavailable
from jobq.stores.valkey import keys, packing
from jobq.stores.valkey.handle import Parted, Refused
from jobq.stores.valkey.mail import Mail
from jobq.stores.valkey.wire import Argument

_STAGED = 500
SETTLING_MS = 10_000
"""A flow staged longer than this is looked at by ticks: perhaps its submitter died in the middle."""


class Flows(Mail):
    """What put, settle and alter need of other queues."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._drafts: dict[tuple[str, str], _Draft] = {}

    # ── edges ─────────────────────────────────────────────────────────────────────────────────────

    async def check_edges(self, specs: Sequence[JobSpec]) -> dict[JobKey, str]:
        """Where the jobs are that these wait for. InvalidJob if one of them does not exist."""
        waited = {edge.job for spec in specs for edge in spec.after}
        if not waited:
            return {}
        for spec in specs:
            await self.partitions(spec.queue)
        own = {
            JobKey(spec.queue, spec.id): self.place(spec.queue, spec.id, spec.key) for spec in specs
        }
        found = await self.locate(waited - own.keys())
        for spec in specs:
            for edge in spec.after:
                _check_edge(spec.id, spec.queue.tenant, edge.job, own | found)
        return own | found

    async def locate(self, jobs: Iterable[JobKey]) -> dict[JobKey, str]:
        """Where jobs are; those that are nowhere are left out."""
        listed = list(jobs)
        found: dict[JobKey, str] = {}
        for prefix, places in (await self.places(listed)).items():
            known = await self.fcall("known", prefix, self.now(), *(listed[n].id for n in places))
            found |= {listed[n]: prefix for n, yes in zip(places, known, strict=True) if yes}
        return found

    # ── flows ─────────────────────────────────────────────────────────────────────────────────────

    async def put_flow(self, specs: Sequence[JobSpec], flow: str, last: bool) -> list[PutResult]:
        """Stage members, and with the last ones submit all of them."""
        if not specs:
            raise refusals.empty_flow(flow)
        try:
            return await self._put_flow(specs, flow, last)
        except Parted:
            self._partitions.clear()
        try:
            return await self._put_flow(specs, flow, last)
        except Parted as e:
            await self._give_up(flow, specs[0].queue.tenant)
            raise ConfigError(
                f"queue {e} was given partitions while flow {flow!r} was made: submit the flow again"
            ) from None

    async def _put_flow(self, specs: Sequence[JobSpec], flow: str, last: bool) -> list[PutResult]:
        tenant = specs[0].queue.tenant
        places = [await self._stage_place(spec) for spec in specs]
        draft = self._draft(tenant, flow)
        state, *_ = await self._manifest(
            tenant, flow, "stage" if draft.places else "begin", *dict.fromkeys(places)
        )
        if state == b"open":
            try:
                check_locks(specs, draft.locks)
                await self._stage(specs, places, flow, draft)
                draft.add(specs, places)
                if last:
                    await draft.check(self)
                    await self._seal(draft)
                    state, *_ = await self._manifest(tenant, flow, "submit")
            except StoreUnavailable:
                raise  # nobody knows; what is staged waits for the same call again
            except JobqError:
                await self._give_up(flow, tenant)
                raise
        if state == b"swept":
            self._drafts.pop((tenant, flow), None)
            raise refusals.swept_flow(flow)
        if not last:
            return [
                PutResult(id=s.id, life=0, state=State.BLOCKED if s.after else State.WAITING)
                for s in specs
            ]
        answers = await self._bring_in(tenant, flow)
        if draft.outside or any(len(answer) > 4 for answer in answers.values()):
            await self._look_again(answers)
        self._drafts.pop((tenant, flow), None)
        return await self._answers(specs, places, answers)

    def _draft(self, tenant: str, flow: str) -> _Draft:
        """What this handle knows of the flow. Of flows that nobody finishes it forgets what it knows when they are swept."""
        now = time.monotonic()
        for name in [n for n, draft in self._drafts.items() if draft.since < now - FLOW_MS / 1000]:
            del self._drafts[name]
        return self._drafts.setdefault((tenant, flow), _Draft(tenant, now))

    async def _manifest(self, tenant: str, flow: str, verb: str, *prefixes: str) -> Any:
        """What the one place says where it is decided whether a flow is submitted."""
        return await self.fcall(
            "manifest",
            self.keys.manifest(tenant, flow),
            verb,
            *prefixes,
            confirmed=verb == "submit",
        )

    async def _give_up(self, flow: str, tenant: str) -> None:
        """The flow is refused: as if nothing of it had ever come."""
        self._drafts.pop((tenant, flow), None)
        _, *prefixes = await self._manifest(tenant, flow, "look")
        await self._discard(flow, [prefix.decode() for prefix in prefixes])
        await self._manifest(tenant, flow, "forget")

    async def _stage_place(self, spec: JobSpec) -> str:
        await self.meet(spec.queue)
        await self.partitions(spec.queue)
        return self.place(spec.queue, spec.id, spec.key)

    async def _stage(
        self, specs: Sequence[JobSpec], places: list[str], flow: str, draft: _Draft
    ) -> None:
        where = draft.places | {
            JobKey(s.queue, s.id): place for s, place in zip(specs, places, strict=True)
        }
        where |= await self.locate({e.job for s in specs for e in s.after} - where.keys())
        for prefix in dict.fromkeys(places):
            mine = [spec for spec, place in zip(specs, places, strict=True) if place == prefix]
            for start in range(0, len(mine), _STAGED):
                await self._stage_at(prefix, mine[start : start + _STAGED], flow, where)

    async def _stage_at(
        self, prefix: str, specs: Sequence[JobSpec], flow: str, where: dict[JobKey, str]
    ) -> None:
        if packing.too_large(specs):
            middle = len(specs) // 2
            await self._stage_at(prefix, specs[:middle], flow, where)
            await self._stage_at(prefix, specs[middle:], flow, where)
            return

        def place(job: JobKey) -> str:
            return where.get(job) or self.keys.prefix(job.queue)

        args: list[Argument] = [self.now(), flow, *_kinds(specs)]
        for spec in specs:
            body, _ = packing.body_of(spec, None)
            args += (spec.id, body, packing.edges(spec.after, place) if spec.after else b"")
        try:
            await self.fcall("stage", prefix, *args)
        except Refused as e:
            self.refuse(e, specs)

    async def _seal(self, draft: _Draft) -> None:
        for prefix, samples in draft.samples.items():
            specs = list(samples.values())
            try:
                begun = await self.fcall("seal", prefix, self.now(), *_kinds(specs))
            except Refused as e:
                self.refuse(e, specs)
            if begun:
                await self.meet(specs[0].queue, again=True)

    def refuse(self, refused: Refused, specs: Sequence[JobSpec]) -> NoReturn:
        """Say in words why jobs were refused."""
        raise NotImplementedError

    async def _discard(self, flow: str, prefixes: Iterable[str]) -> None:
        for prefix in prefixes:
            messages, to_wake = await self.fcall("discard", prefix, self.now(), flow)
            await self.after(keys.queue_of(prefix), prefix, to_wake=to_wake, messages=messages)

    async def _bring_in(self, tenant: str, flow: str) -> dict[tuple[str, str], list[Any]]:
        """The members of a submitted flow become visible, by calls of bounded size that anybody may repeat.

        Those that wait come first, and are known to those they wait for before any of these can start.
        """
        answers: dict[tuple[str, str], list[Any]] = {}
        _, *found = await self._manifest(tenant, flow, "look")
        prefixes = [prefix.decode() for prefix in found]
        for which in ("tied", "free"):
            for prefix in prefixes:
                more = True
                while more:
                    to_wake, _, due_in, some, ids, more = await self.fcall(
                        "submit", prefix, self.now(), flow, which, confirmed=True
                    )
                    answers |= {
                        (prefix, id.decode()): answer for id, answer in zip(ids, some, strict=True)
                    }
                    await self.after(keys.queue_of(prefix), prefix, to_wake=to_wake, due_in=due_in)
            for prefix in prefixes:
                await self.pump(prefix)
        if prefixes:
            await self._manifest(tenant, flow, "settled")
        return answers

    async def _look_again(self, answers: dict[tuple[str, str], list[Any]]) -> None:
        """Some waited for jobs that were there before, and perhaps had ended: those wait no more."""
        blocked: dict[str, list[str]] = {}
        for (place, id), answer in answers.items():
            if answer[3] == STATE_CODES[State.BLOCKED] and len(answer) == 4:
                blocked.setdefault(place, []).append(id)
        for place, ids in blocked.items():
            for id, view in zip(ids, await self._views(place, ids), strict=True):
                if view:
                    answers[place, id][3] = view[1]

    async def _views(self, place: str, ids: Sequence[str]) -> list[Any]:
        found: list[Any] = []
        for start in range(0, len(ids), _STAGED):
            found += await self.fcall("get", place, self.now(), *ids[start : start + _STAGED])
        return found

    async def _answers(
        self, specs: Sequence[JobSpec], places: list[str], answers: dict[tuple[str, str], list[Any]]
    ) -> list[PutResult]:
        missing: dict[str, list[str]] = {}
        for spec, place in zip(specs, places, strict=True):
            if (place, spec.id) not in answers:  # submitted before: as it is now
                missing.setdefault(place, []).append(spec.id)
        for place, ids in missing.items():
            for id, view in zip(ids, await self._views(place, ids), strict=True):
                answers[place, id] = [0, id.encode(), 0, view[1] if view else 4, view or []]
        return [
            self.put_result(s.queue, answers[place, s.id])
            for s, place in zip(specs, places, strict=True)
        ]

    def put_result(self, queue: QueueName, answer: list[Any]) -> PutResult:
        """An answer of put or submit."""
        raise NotImplementedError

    async def settle_flows(self, prefix: str) -> int:
        """Flows staged for a while: bring in what was submitted, sweep what never was. Answers how many of them it was."""
        now = int(self.now() or time.time() * 1000)
        found = await self.fcall("staged", prefix, now - SETTLING_MS, 100)
        tenant = keys.queue_of(prefix).tenant
        settled = 0
        for name, begun in zip(found[::2], found[1::2], strict=True):
            flow = name.decode()
            verb = "sweep" if float(begun) < now - FLOW_MS else "look"
            state, *prefixes = await self._manifest(tenant, flow, verb, prefix)
            if state == b"done":
                await self._bring_in(tenant, flow)
            elif state == b"swept":
                await self._discard(flow, {prefix, *(p.decode() for p in prefixes)})
            else:
                continue
            settled += 1
        return settled


class _Draft:
    """What this handle knows of a flow in the making."""

    def __init__(self, tenant: str, since: float) -> None:
        self.tenant = tenant
        self.since = since
        self.places: dict[JobKey, str] = {}
        self.edges: dict[Edge, str] = {}
        self.locks: dict[Lock, str] = {}
        self.samples: dict[
            str, dict[bool, JobSpec]
        ] = {}  # of each place, by whether it has a key, the one that costs most

    def add(self, specs: Sequence[JobSpec], places: list[str]) -> None:
        for spec, place in zip(specs, places, strict=True):
            self.places[JobKey(spec.queue, spec.id)] = place
            self.edges |= dict.fromkeys(spec.after, spec.id)
            samples = self.samples.setdefault(place, {})
            if spec.cost > getattr(samples.get(spec.key is not None), "cost", 0):
                samples[spec.key is not None] = spec

    @property
    def outside(self) -> set[JobKey]:
        """Jobs that members wait for and that are none themselves."""
        return {edge.job for edge in self.edges} - self.places.keys()

    async def check(self, store: Flows) -> None:
        found = await store.locate(self.outside)
        for edge, id in self.edges.items():
            _check_edge(id, self.tenant, edge.job, self.places | found)


def _kinds(specs: Sequence[JobSpec]) -> tuple[int, int, int]:
    """The places of the first plain one and of the first keyed one (0: none), and the highest cost."""
    plain = next((n for n, s in enumerate(specs, 1) if s.key is None), 0)
    keyed = next((n for n, s in enumerate(specs, 1) if s.key is not None), 0)
    return plain, keyed, max(s.cost for s in specs)


def _check_edge(id: str, tenant: str, child: JobKey, known: dict[JobKey, str]) -> None:
    """A job waits for jobs that exist, of its own tenant. Another tenant's do not exist as far as it may know."""
    if child not in known or child.queue.tenant != tenant:
        raise refusals.unknown_child(id, child)
