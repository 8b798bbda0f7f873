"""The hot calls: put, settle (and claim), extend, note."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Sequence
from struct import Struct
from typing import Any, NamedTuple, NoReturn

from jobq.core import refusals
from jobq.core.bounds import depend_on_each_other, queue_full
from jobq.core.event_log import STATES
from jobq.core.graph import check_locks
from jobq.core.records import (
    AnyOutcome,
    Block,
    Claim,
    Complete,
    JobKey,
    JobSpec,
    Lease,
    LeaseRef,
    LeaseState,
    Note,
    PutResult,
    QueueName,
    Settled,
    lane_of,
)
from jobq.errors import CorruptStore, QueueFull
from jobq.stores.valkey import keys, packing, unpacking
from jobq.stores.valkey.functions import function
from jobq.stores.valkey.handle import Parted, Refused
from jobq.stores.valkey.packing import Prepared
from jobq.stores.valkey.sleep import Sleep
from jobq.stores.valkey.unpacking import Glance
from jobq.stores.valkey.wire import Argument

log = logging.getLogger("jobq")

_PUT, _PUT_ALIKE, _SETTLE, _EXTEND = (
    function("put"),
    function("put_uniform"),
    function("settle"),
    function("extend"),
)
_numbers = Struct(">8d").pack
_BATCH = 2000
"""Jobs per call of put: the server does nothing else meanwhile, and 2,000 take it about 6 ms."""
_STATES: dict[str, LeaseState] = {"h": "held", "l": "lost", "c": "cancel"}
_FULL = -1  # in place of the state of a job that was refused: its queue is full
_REPEATED = -2  # what an exchange answers that was made before: look again at once


class Place(NamedTuple):
    """A queue, or one partition of it. `mark` is what its tokens end with."""

    prefix: str
    queue: QueueName
    mark: str


class Caller(NamedTuple):
    """Whose exchange it is."""

    worker: str
    call: str
    lane: int
    again: bool  # it may have been made before
    asleep: bool  # the worker may count as asleep
    sleepy: bool  # finding nothing, it is to count as asleep


class _Found:
    """What several exchanges answered between them."""

    def __init__(self) -> None:
        self.stale: list[LeaseRef] = []
        self.leases: list[Lease] = []
        self.dues: list[int] = []
        self.asleep = False
        self.left = False  # a last chance was left: Settled.last_chance
        self.visited: set[str] = set()

    def add(self, answer: Settled, prefix: str) -> None:
        self.visited.add(prefix)
        self.stale += answer.stale
        self.leases += answer.leases
        if answer.next_due_ms is not None:
            self.dues.append(answer.next_due_ms)
        self.left = self.left or answer.last_chance

    @property
    def last_chance(self) -> bool:
        """Whether there is a lease that must stay alone."""
        return bool(self.leases) and self.leases[0].last_chance

    def answer(self) -> Settled:
        return Settled(
            stale=tuple(self.stale),
            leases=tuple(self.leases),
            next_due_ms=min(self.dues, default=None),
            last_chance=self.left,
            asleep=self.asleep and not self.leases,
        )


class HotCalls(Sleep):
    """What runs for every job."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._last_calls: dict[tuple[str, int], str] = {}

    def prepare(self, specs: Sequence[JobSpec]) -> Sequence[JobSpec]:
        """See Pipelined."""
        return Prepared(specs, self.expected)

    async def put(
        self, specs: Sequence[JobSpec], *, flow: str | None = None, last: bool = True
    ) -> list[PutResult]:
        """See HotStore."""
        if not specs and flow is None:
            return []
        if flow is not None:
            return await self.put_flow(specs, flow, last)
        try:
            return await self._put(specs)
        except Parted:
            self._partitions.clear()
            return await self._put(specs)

    async def _put(self, specs: Sequence[JobSpec]) -> list[PutResult]:
        queue = specs[0].queue
        specs = specs if isinstance(specs, Prepared) else Prepared(specs, self.expected)
        if (
            specs.alike is not None
            and len(specs) <= _BATCH
            and self._partitions.get(queue) == 1
            and queue in self._met
        ):
            return await self._put_at(self.keys.prefix(queue), specs, {})
        where = await self.check_edges(specs) if any(spec.after for spec in specs) else {}
        if where and depend_on_each_other(specs):  # a flow in all but name
            check_locks(specs)
        groups = await self._by_place(specs)
        if len(groups) == 1 and len(specs) <= _BATCH and not (where and specs.too_large):
            ((prefix, _),) = groups.items()
            return await self._put_at(prefix, specs, where)
        own = {JobKey(spec.queue, spec.id) for spec in specs} if where else set()
        if any(edge.job in own for spec in specs for edge in spec.after):
            # They wait for each other and go in by several calls: one whose children came later would find them gone.
            try:
                return await self.put_flow(specs, f"put-{os.urandom(9).hex()}", True)
            except QueueFull as full:
                return [
                    PutResult(id=spec.id, life=0, state=None, full=full.max_waiting)
                    for spec in specs
                ]
        answers: list[PutResult | None] = [None] * len(specs)
        for prefix, places in groups.items():
            for start in range(0, len(places), _BATCH):
                part = places[start : start + _BATCH]
                for n, answer in zip(
                    part, await self._put_part(prefix, [specs[n] for n in part], where), strict=True
                ):
                    answers[n] = answer
        return answers  # type: ignore[return-value]

    async def _by_place(self, specs: Sequence[JobSpec]) -> dict[str, list[int]]:
        groups: dict[str, list[int]] = {}
        for n, spec in enumerate(specs):
            if spec.queue not in self._met:
                await self.meet(spec.queue)
            if spec.queue not in self._partitions:
                await self.partitions(spec.queue)
            groups.setdefault(self.place(spec.queue, spec.id, spec.key), []).append(n)
        return groups

    async def _put_at(
        self, prefix: str, specs: Prepared, where: dict[JobKey, str]
    ) -> list[PutResult]:
        if specs.too_large:
            middle = len(specs) // 2
            first = await self._put_part(prefix, specs[:middle], where)
            return first + await self._put_part(prefix, specs[middle:], where)
        name, args = (
            (_PUT, self._each(specs, where)) if specs.alike is None else (_PUT_ALIKE, specs.alike)
        )
        try:
            reply = await self.fcall_list(name, prefix, (self.now(), *args), confirmed=True)
        except Refused as e:
            self.refuse(e, specs)
        if reply[4]:
            await self.meet(specs[0].queue, again=True)
        await self.after(
            specs[0].queue, prefix, to_wake=reply[0], messages=reply[1], due_in=reply[2]
        )
        for answer in reply[3]:
            specs.results[answer[0] - 1] = self.put_result(specs[0].queue, answer)
        return specs.results

    async def _put_part(
        self, prefix: str, specs: Sequence[JobSpec], where: dict[JobKey, str]
    ) -> list[PutResult]:
        return await self._put_at(prefix, Prepared(specs, self.expected), where)

    def _each(self, specs: Sequence[JobSpec], where: dict[JobKey, str]) -> tuple[Argument, ...]:
        """What `put` takes of jobs of any kind."""
        plain = keyed = 0
        cost, look = 1, False
        jobs: list[Argument] = []
        tied: list[Argument] = []
        body_of, channel, expected = packing.body_of, self.channel, self.expected
        for n, spec in enumerate(specs, 1):
            body, closely = body_of(
                spec, channel if expected and (spec.queue, spec.id) in expected else None
            )
            jobs += (spec.id, body)
            if closely:
                look = True
                if spec.after:
                    tied += (n, packing.edges(spec.after, where.__getitem__))
            if spec.key is None:
                plain = plain or n
            else:
                keyed = keyed or n
            if spec.cost > cost:
                cost = spec.cost
        look = look or len({spec.id for spec in specs}) != len(specs)
        return (
            len(specs),
            plain,
            keyed,
            cost,
            2 if tied and depend_on_each_other(specs) else int(look),
            *jobs,
            *tied,
        )

    def put_result(self, queue: QueueName, answer: list[Any]) -> PutResult:
        """An answer that is more than "new and waiting"."""
        _, id, life, state, *found = answer
        if state == _FULL:
            return PutResult(id=id.decode(), life=0, state=None, full=found[0])
        if not found:
            return PutResult(id=id.decode(), life=life, state=STATES[state])
        known = unpacking.record(queue, found[0]) if found[0] else None
        return PutResult(
            id=id.decode(), life=life, state=STATES[state], duplicate=True, found=known
        )

    def refuse(self, refused: Refused, specs: Sequence[JobSpec]) -> NoReturn:
        """Say in words why jobs were refused."""
        queue = specs[0].queue.queue
        if refused.word == "FULL":
            raise queue_full(queue, int(refused.rest[0]), refused=len(specs))
        if refused.word == "COST":
            capacity = int(float(refused.rest[0]))
            spec = next(s for s in specs if s.cost > capacity)
            raise refusals.too_costly(spec, capacity)
        spec = specs[int(refused.rest[1]) - 1]
        raise refusals.wrong_mode("keyed" if refused.rest[0] == "keyed" else "plain", spec)

    # ── settle and claim ──────────────────────────────────────────────────────────────────────────

    async def settle(
        self, outcomes: Sequence[AnyOutcome], *, worker: str, call: str, then: Claim | None = None
    ) -> Settled:
        """See HotStore."""
        self.wake(worker)
        lane = lane_of(call)
        last = self._last_calls.get((worker, lane))
        self._last_calls[worker, lane] = call
        if then is None:
            await self.rise(worker)
            queues: Sequence[QueueName] = ()
        else:
            self.looked_in[worker] = queues = then.queues
        by = Caller(
            worker,
            call,
            lane,
            last is None or last == call,
            self.registered.get(worker, 1) > 0,
            True,
        )
        if (
            len(queues) == 1
            and self._partitions.get(queues[0]) == 1
            and all(o.queue == queues[0] for o in outcomes)
        ):
            assert then is not None
            prefix = self.keys.prefix(queues[0])
            return await self._exchange(
                prefix, queues[0], outcomes, by, then.limit, then.lease_ms, "", not then.alone
            )
        return await self._exchanges(outcomes, by, then)

    async def _exchanges(
        self, outcomes: Sequence[AnyOutcome], by: Caller, then: Claim | None
    ) -> Settled:
        """Over several queues or partitions, one after the other: what one leaves free, the next may fill.

        A glance at the counters of all of them tells which are worth the way. A repeated call goes everywhere: leases it
        was granted may be where nothing waits any more. Only when nothing is found anywhere does the worker fall asleep, and
        one that wakes is struck off everywhere: a queue that counted a busy worker as asleep would wake it in vain.
        """
        by = by._replace(sleepy=False)
        by_place: dict[Place, list[AnyOutcome]] = {}
        for o in outcomes:
            by_place.setdefault(await self._where(o.queue, o.token), []).append(o)
        claims = await self._claimed_from(then, by.call)
        found = _Found()
        for at in [at for at in by_place if at not in claims]:
            found.add(
                await self._exchange(at.prefix, at.queue, by_place[at], by, -1, 0, at.mark),
                at.prefix,
            )
        if then is None:
            return found.answer()
        glances = {} if by.again else await self._glance(claims)
        found.dues += [
            g.due_in for at, g in glances.items() if not g.ready and g.due_in is not None
        ]
        skipped = [
            at for at in claims if at not in by_place and at in glances and not glances[at].ready
        ]
        await self._claim_at([at for at in claims if at not in skipped], by_place, by, then, found)
        if not found.leases and not outcomes and not found.left:
            # Nothing: it will sleep. Every queue must know, and what came since the glance must not be slept through.
            await self.fall_asleep(then.queues, by.worker, then.limit)
            parts = [at for at in claims if at.mark]
            ready = [at for at, g in (await self._glance(parts)).items() if g.ready]
            whole = [at for at in claims if not at.mark]
            await self._claim_at(
                [*whole, *ready],
                {},
                by._replace(call=f"{by.call}+", asleep=False, sleepy=True),
                then,
                found,
            )
            found.asleep = True
        elif by.asleep:
            await self.strike_off(
                by.worker, {self.keys.prefix(queue) for queue in then.queues} - found.visited
            )
        return found.answer()

    async def _claimed_from(self, then: Claim | None, call: str) -> list[Place]:
        places: list[Place] = []
        for queue in then.queues if then else ():
            prefixes = await self.prefixes(queue)
            if len(prefixes) == 1:
                places.append(Place(prefixes[0], queue, ""))
                continue
            turn = keys.turn_of(call, len(prefixes))
            places += [
                Place(prefixes[n], queue, f"~{n}")
                for n in (*range(turn, len(prefixes)), *range(turn))
            ]
        return places

    async def _claim_at(
        self,
        places: list[Place],
        outcomes: dict[Place, list[AnyOutcome]],
        by: Caller,
        then: Claim,
        found: _Found,
    ) -> None:
        for at in places:
            room = 0 if found.last_chance else then.limit - len(found.leases)
            if room > 0 or at in outcomes:
                mine = outcomes.get(at, ())
                company = bool(found.leases) or not then.alone
                try:
                    answer = await self._exchange(
                        at.prefix, at.queue, mine, by, room, then.lease_ms, at.mark, company
                    )
                except CorruptStore as error:
                    if mine or len(places) == 1:
                        raise
                    log.error("%s; the other queues are served", error)
                else:
                    found.add(answer, at.prefix)

    async def _glance(self, places: Sequence[Place]) -> dict[Place, Glance]:
        """What the counters of queues or partitions say, all asked at once."""
        now = int(self.now() or time.time() * 1000)
        stored = await asyncio.gather(
            *(self.servers.command(at.prefix, "GET", keys.counters(at.prefix)) for at in places)
        )
        return {at: unpacking.glance(data, now) for at, data in zip(places, stored, strict=True)}

    async def _where(self, queue: QueueName, token: str) -> Place:
        if (self._partitions.get(queue) or await self.partitions(queue)) == 1:
            return Place(self.keys.prefix(queue), queue, "")
        mark = token.rpartition("~")[2]
        partition = int(mark) if mark.isdigit() else 0
        return Place(self.keys.partition_prefix(queue, partition), queue, f"~{partition}")

    async def _exchange(
        self,
        prefix: str,
        queue: QueueName,
        outcomes: Sequence[AnyOutcome],
        by: Caller,
        room: int,
        lease_ms: int,
        mark: str,
        company: bool = False,
    ) -> Settled:
        """One queue's or partition's part. `company`: the caller has other jobs, so it gets no last chance."""
        done: list[Argument] = []
        rest: list[Argument] = []
        ordered: list[AnyOutcome] = []
        others: list[AnyOutcome] = []
        where: dict[JobKey, str] = {}
        for o in outcomes:
            token = o.token.removesuffix(mark) if mark else o.token
            if type(o) is Complete:
                result = o.result
                done += (o.id, token, b"" if result is None else b"\x01" + result)
                ordered.append(o)
            else:
                others.append(o)
                if type(o) is Block:
                    where = await self._waited(o)
                rest += packing.outcome(o, where.__getitem__, token)
        worker, call, lane, _, asleep, sleepy = by
        sleepy = sleepy and not mark  # partitions leave that to the queue as a whole
        numbers = _numbers(lane, room, lease_ms, len(ordered), len(others), sleepy, asleep, company)
        args = (self.now(), worker, call, numbers, *done, *rest)
        self.registered[worker] = 0
        try:
            reply = await self.fcall_list(_SETTLE, prefix, args, confirmed=True)
        except BaseException:
            self.registered[worker] = 1  # perhaps
            raise
        stale, due, messages, to_wake, left, *granted = reply
        if messages or to_wake:
            await self.after(queue, prefix, to_wake=to_wake, messages=messages)
        leases = unpacking.leases(queue, granted, lease_ms, mark)
        if sleepy and len(leases) < room:
            self.registered[worker] = room - len(leases)
        refs: tuple[LeaseRef, ...] = ()
        if stale:
            ordered += others
            late = {id(ordered[int(n) - 1]) for n in stale.split(b",")}
            refs = tuple(LeaseRef(o.queue, o.id, o.token) for o in outcomes if id(o) in late)
        repeated = due == _REPEATED
        return Settled(
            stale=refs,
            leases=leases,
            next_due_ms=0 if repeated else None if due < 0 else due,
            last_chance=bool(left),
            asleep=sleepy and not leases and room > 0 and not repeated and not left,
        )

    async def _waited(self, outcome: Block) -> dict[JobKey, str]:
        """Where the jobs are that a blocking outcome waits for; those that are gone are looked for in their queue, in vain."""
        waited = {edge.job for edge in outcome.after}
        if not waited:
            return {}
        return {job: self.keys.prefix(job.queue) for job in waited} | await self.locate(waited)

    # ── extend and note ───────────────────────────────────────────────────────────────────────────

    async def extend(self, leases: Sequence[LeaseRef], *, lease_ms: int) -> list[LeaseState]:
        """See HotStore."""
        groups: dict[Place, list[int]] = {}
        for n, lease in enumerate(leases):
            groups.setdefault(await self._where(lease.queue, lease.token), []).append(n)
        answers: list[LeaseState] = ["lost"] * len(leases)

        async def one(prefix: str, mark: str, places: list[int]) -> None:
            args: list[Argument] = [self.now(), lease_ms]
            for n in places:
                args += (leases[n].id, leases[n].token.removesuffix(mark))
            reply = await self.fcall_list(_EXTEND, prefix, args)
            for n, letter in zip(places, reply.decode(), strict=True):
                answers[n] = _STATES[letter]

        await asyncio.gather(
            *(one(prefix, mark, places) for (prefix, _, mark), places in groups.items())
        )
        return answers

    async def note(self, notes: Sequence[Note]) -> list[LeaseState]:
        """See HotStore."""
        groups: dict[Place, list[int]] = {}
        for n, note in enumerate(notes):
            groups.setdefault(await self._where(note.lease.queue, note.lease.token), []).append(n)
        answers: list[LeaseState] = ["lost"] * len(notes)
        for (prefix, _, mark), places in groups.items():
            args: list[Argument] = []
            for n in places:
                args += packing.note(notes[n], mark)
            # A checkpoint must survive what a settled outcome survives; progress and log lines need not.
            reply = await self.fcall(
                "note", prefix, *args, confirmed=any(notes[n].saved is not None for n in places)
            )
            for n, letter in zip(places, reply.decode(), strict=True):
                answers[n] = _STATES[letter]
        return answers
