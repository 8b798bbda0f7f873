"""Flows: edges between jobs, members staged until they are submitted, and messages between queues.

Queues may be on different nodes, so nothing here is one step over several of them. A flow is submitted when its manifest
says so, which is one step on one node; each queue then brings in its part, again and again until it has, by whoever
comes by (the submitter, or a tick). What queues have to tell each other stands in the sender's outbox until the receiver
has taken it, and taking a message twice is taking it once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from jobq.core.records import Edge, JobKey, JobSpec, PutResult, QueueName
from jobq.core.states import State
from jobq.errors import InvalidJob, StoreUnavailable
from jobq.stores.valkey import keys, packing
from jobq.stores.valkey.handle import Handle, Refused
from jobq.stores.valkey.wire import Argument

log = logging.getLogger("jobq.valkey")
_MAIL = 100
_ROUNDS = 100
_STAGED = 500
SETTLING_MS = 10_000
"""A flow staged longer than this is looked at by ticks: perhaps its submitter died in the middle."""
ABANDONED_MS = 3_600_000
"""A flow that nobody submitted for this long is swept."""


class Flows(Handle):
    """What put, settle and alter need of other queues."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._pumping: dict[str, asyncio.Lock] = {}
        self._drafts: dict[tuple[str, str], _Draft] = {}

    # ── edges ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def check_edges(self, specs: Sequence[JobSpec]) -> dict[JobKey, str]:
        """Where the jobs are that these wait for. InvalidJob if one of them does not exist."""
        waited = {edge.job for spec in specs for edge in spec.after}
        if not waited:
            return {}
        for spec in specs:
            await self.partitions(spec.queue)
        own = {JobKey(spec.queue, spec.id): self.place(spec.queue, spec.id, spec.key) for spec in specs}
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

    # ── flows ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def put_flow(self, specs: Sequence[JobSpec], flow: str, last: bool) -> list[PutResult]:
        """Stage members, and with the last ones submit all of them."""
        name = (specs[0].queue.tenant if specs else "", flow)
        draft = self._drafts.setdefault(name, _Draft(name[0]))
        places = [await self._stage_place(spec) for spec in specs]
        manifest = keys.manifest(draft.tenant, flow)
        state, *_ = await self.fcall("manifest", manifest, "stage", *dict.fromkeys(places))
        if state != b"done":
            draft.add(specs, places)
            try:
                await self._stage(specs, places, flow, draft)
                if last:
                    await draft.check(self)
                    await self._seal(draft)
            except Exception:
                await self._discard(flow, set(draft.places.values()))
                self._drafts.pop(name, None)
                raise
        if not last:
            return [PutResult(id=s.id, life=0, state=State.BLOCKED if s.after else State.WAITING) for s in specs]
        self._drafts.pop(name, None)
        _, *prefixes = await self.fcall("manifest", manifest, "submit", confirmed=True)
        answers = await self._submit(flow, [prefix.decode() for prefix in prefixes])
        return await self._answers(specs, places, answers)

    async def _stage_place(self, spec: JobSpec) -> str:
        await self.meet(spec.queue)
        await self.partitions(spec.queue)
        return self.place(spec.queue, spec.id, spec.key)

    async def _stage(self, specs: Sequence[JobSpec], places: list[str], flow: str, draft: _Draft) -> None:
        where = draft.places | await self.locate({e.job for s in specs for e in s.after} - draft.places.keys())
        for prefix in dict.fromkeys(places):
            mine = [spec for spec, place in zip(specs, places, strict=True) if place == prefix]
            for start in range(0, len(mine), _STAGED):
                await self._stage_at(prefix, mine[start : start + _STAGED], flow, where)

    async def _stage_at(self, prefix: str, specs: Sequence[JobSpec], flow: str, where: dict[JobKey, str]) -> None:
        def place(job: JobKey) -> str:
            return where.get(job) or keys.prefix(job.queue)

        args: list[Argument] = [self.now(), flow, *_kinds(specs)]
        for spec in specs:
            body, _ = packing.body_of(spec, self.channel)
            args += (spec.id, body, packing.edges(spec.after, place) if spec.after else b"")
        try:
            await self.fcall("stage", prefix, *args)
        except Refused as e:
            self.refuse(e, specs)

    async def _seal(self, draft: _Draft) -> None:
        for prefix, samples in draft.samples.items():
            specs = list(samples.values())
            try:
                await self.fcall("seal", prefix, self.now(), *_kinds(specs))
            except Refused as e:
                self.refuse(e, specs)

    def refuse(self, refused: Refused, specs: Sequence[JobSpec]) -> NoReturn:
        """Say in words why jobs were refused."""
        raise NotImplementedError

    async def _discard(self, flow: str, prefixes: Iterable[str]) -> None:
        for prefix in prefixes:
            await self.fcall("discard", prefix, flow)

    async def _submit(self, flow: str, prefixes: Sequence[str]) -> dict[tuple[str, str], list[Any]]:
        answers: dict[tuple[str, str], list[Any]] = {}
        for prefix in prefixes:
            reply = await self.fcall("submit", prefix, self.now(), flow, confirmed=True)
            answers |= {(prefix, id.decode()): answer for id, answer in zip(reply[4], reply[3], strict=True)}
            await self.after(keys.queue_of(prefix), prefix, to_wake=reply[0], messages=0, due_in=reply[2])
        for prefix in prefixes:
            await self.pump(prefix)
        return answers

    async def _answers(
        self, specs: Sequence[JobSpec], places: list[str], answers: dict[tuple[str, str], list[Any]]
    ) -> list[PutResult]:
        results = []
        for spec, place in zip(specs, places, strict=True):
            answer = answers.get((place, spec.id))
            if answer is None:  # submitted before: as it is now
                (view,) = await self.fcall("get", place, self.now(), spec.id)
                answer = [0, spec.id.encode(), 0, view[1] if view else 4, view or []]
            results.append(self.put_result(spec.queue, answer))
        return results

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
            state, *_ = await self.fcall("manifest", keys.manifest(tenant, flow), "stage")
            if state == b"done":
                await self._submit(flow, [prefix])
            elif float(begun) < now - ABANDONED_MS:
                await self._discard(flow, [prefix])
            else:
                continue
            settled += 1
        return settled

    # ── messages ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def after(self, queue: QueueName, prefix: str, *, to_wake: int = 0, messages: int = 0, due_in: int = -1) -> None:
        """What a call has left to do elsewhere: deliver messages, wake sleepers of a partitioned queue."""
        if messages:
            await self.pump(prefix)
        if to_wake or due_in >= 0:
            await self.fcall("wake_some", keys.prefix(queue), to_wake, due_in)

    async def pump(self, prefix: str) -> None:
        """Deliver what stands in the outbox of a queue, and what that leads to. What fails is left for the next tick."""
        todo = [prefix]
        try:
            for _ in range(_ROUNDS):
                if not todo:
                    return
                todo += await self._pump_once(todo.pop())
        except StoreUnavailable as e:
            log.warning("messages of %s wait for the next tick: %s", prefix, e)

    async def _pump_once(self, prefix: str) -> list[str]:
        box = keys.outbox(prefix)
        more: list[str] = []
        async with self._pumping.setdefault(prefix, asyncio.Lock()):
            found = await self.servers.command(prefix, "ZRANGE", box, 0, _MAIL - 1)
            by_queue: dict[str, list[bytes]] = {}
            for message in found:
                by_queue.setdefault(message.partition(b"\n")[0].decode(), []).append(message)
            for target, messages in by_queue.items():
                await self.meet(keys.queue_of(target))
                args = (self.now(), *(m.partition(b"\n")[2] for m in messages))
                taken, waiting, to_wake = await self.fcall("deliver", target, *args)
                done = [messages[int(n) - 1] for n in taken.split(b",") if n]
                if done:
                    await self.servers.command(prefix, "ZREM", box, *done)
                await self.after(keys.queue_of(target), target, to_wake=to_wake)
                if waiting:
                    more.append(target)
                if done and len(found) == _MAIL:
                    more.append(prefix)
        return more


class _Draft:
    """What this handle knows of a flow in the making."""

    def __init__(self, tenant: str) -> None:
        self.tenant = tenant
        self.places: dict[JobKey, str] = {}
        self.edges: dict[Edge, str] = {}
        self.samples: dict[str, dict[bool, JobSpec]] = {}  # of each place, by whether it has a key, the one that costs most

    def add(self, specs: Sequence[JobSpec], places: list[str]) -> None:
        for spec, place in zip(specs, places, strict=True):
            self.places[JobKey(spec.queue, spec.id)] = place
            self.edges |= dict.fromkeys(spec.after, spec.id)
            samples = self.samples.setdefault(place, {})
            if spec.cost > getattr(samples.get(spec.key is not None), "cost", 0):
                samples[spec.key is not None] = spec

    async def check(self, store: Flows) -> None:
        outside = {edge.job for edge in self.edges} - self.places.keys()
        found = await store.locate(outside)
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
        raise InvalidJob(f"job {id!r} waits for {child.id!r} of queue {child.queue.queue!r}, which does not exist")
