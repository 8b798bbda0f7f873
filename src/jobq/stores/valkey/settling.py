"""`settle`: the exchange of a worker with its queues, one queue or partition after the other."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple

from jobq.core.records.jobs import (
    AnyOutcome,
    Block,
    Claim,
    Complete,
    JobKey,
    Lease,
    LeaseRef,
    LeaseState,
    Note,
    QueueName,
    Settled,
    lane_of,
)
from jobq.core.values.checks import check_steps
from jobq.errors import CorruptStore, StoreUnavailable
from jobq.stores.valkey import jobs, keys, packing
from jobq.stores.valkey.calls import Calls
from jobq.stores.valkey.connection import Argument
from jobq.stores.valkey.flows import Edges
from jobq.stores.valkey.library import function
from jobq.stores.valkey.mail import Mail
from jobq.stores.valkey.partitions import Partition, Partitions
from jobq.stores.valkey.queues import QueuePeek, peek_at_counters
from jobq.stores.valkey.servers import Servers
from jobq.stores.valkey.sleepers import Sleepers

# One exchange with one queue or partition: end runs, then claim jobs.

_SETTLE = function("settle")
_numbers = Struct(">8d").pack
_REPEATED = -2  # instead of the next due time: the exchange was made before, so look again at once


class Caller(NamedTuple):
    """The worker that makes an exchange."""

    worker: str
    call: str
    lane: int
    repeated: bool  # the call may have been made before
    asleep: bool  # the worker may count as asleep
    sleepy: bool  # the worker counts as asleep if it finds nothing


class Exchange:
    """Calls the function `settle` (lua/settle.lua)."""

    def __init__(
        self, calls: Calls, partitions: Partitions, mail: Mail, edges: Edges, sleepers: Sleepers
    ) -> None:
        self._calls = calls
        self._partitions = partitions
        self._mail = mail
        self._edges = edges
        self._slots = sleepers.slots

    async def run(
        self,
        at: Partition,
        outcomes: Sequence[AnyOutcome],
        by: Caller,
        room: int,
        lease_ms: int,
        company: bool,
    ) -> Settled:
        """Settle the outcomes, and claim up to `room` jobs (-1: do not claim).

        `company`: the caller has other jobs, so it gets no job on its last chance.
        """
        prefix, queue, suffix = at
        done: list[Argument] = []
        rest: list[Argument] = []
        ordered: list[AnyOutcome] = []
        others: list[AnyOutcome] = []
        where: dict[JobKey, str] = {}
        for o in outcomes:
            token = o.token.removesuffix(suffix) if suffix else o.token
            if type(o) is Complete:
                result = o.result
                done += (o.id, token, b"" if result is None else b"\x01" + result)
                ordered.append(o)
            else:
                others.append(o)
                if type(o) is Block:
                    where = await self._children_of(o)
                rest += packing.outcome(o, where.__getitem__, token)
        worker, call, lane, _, asleep, sleepy = by
        # Sleepers of a partitioned queue are kept for the whole queue.
        sleepy = sleepy and not suffix
        numbers = _numbers(lane, room, lease_ms, len(ordered), len(others), sleepy, asleep, company)
        args = (self._calls.now(), worker, call, numbers, *done, *rest)
        self._slots[worker] = 0
        try:
            reply = await self._calls.fcall_list(_SETTLE, prefix, args, confirmed=True)
        except BaseException:
            self._slots[worker] = 1  # the worker may count as asleep
            raise
        stale, due, messages, to_wake, left, *granted = reply
        if messages or to_wake:
            await self._mail.after(queue, prefix, to_wake=to_wake, messages=messages)
        leases = jobs.leases(queue, granted, lease_ms, suffix)
        if sleepy and len(leases) < room:
            self._slots[worker] = room - len(leases)
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

    async def _children_of(self, outcome: Block) -> dict[JobKey, str]:
        """The prefixes of the jobs that a blocking outcome waits for.

        A job that does not exist gets the prefix of its queue, which then reports that it is gone.
        """
        waited = {edge.job for edge in outcome.after}
        if not waited:
            return {}
        prefixes = {job: self._partitions.space.prefix(job.queue) for job in waited}
        return prefixes | await self._edges.locate(waited)


log = logging.getLogger("jobq")

_FIRST_PEEK = 8
"""Queues or partitions that a claim looks into first.

It looks into the others only if these do not fill it. So while jobs wait everywhere, a claim costs
the same however many partitions there are.
"""
_RETRY_MS = 500
"""When a worker looks again, if it could not ask all primaries."""


class _Total:
    """The replies of several exchanges, as one."""

    def __init__(self) -> None:
        self.stale: list[LeaseRef] = []
        self.leases: list[Lease] = []
        self.dues: list[int] = []
        self.asleep = False
        self.left = False  # a job on its last chance was left: Settled.last_chance
        self.visited: set[str] = set()
        self.unavailable: StoreUnavailable | None = None  # a server that could not be asked

    def add(self, reply: Settled, prefix: str) -> None:
        self.visited.add(prefix)
        self.stale += reply.stale
        self.leases += reply.leases
        if reply.next_due_ms is not None:
            self.dues.append(reply.next_due_ms)
        self.left = self.left or reply.last_chance

    @property
    def last_chance(self) -> bool:
        """Whether there is a lease that must stay alone."""
        return bool(self.leases) and self.leases[0].last_chance

    def settled(self) -> Settled:
        return Settled(
            stale=tuple(self.stale),
            leases=tuple(self.leases),
            next_due_ms=min(self.dues, default=None),
            last_chance=self.left,
            asleep=self.asleep and not self.leases,
        )


class Settling:
    """Settles outcomes and claims jobs."""

    def __init__(
        self,
        servers: Servers,
        calls: Calls,
        partitions: Partitions,
        sleepers: Sleepers,
        exchange: Exchange,
    ) -> None:
        self._servers = servers
        self._calls = calls
        self._partitions = partitions
        self._sleepers = sleepers
        self._exchange = exchange.run
        self._last_calls: dict[tuple[str, int], str] = {}

    async def settle(
        self, outcomes: Sequence[AnyOutcome], *, worker: str, call: str, then: Claim | None = None
    ) -> Settled:
        """See HotStore."""
        sleepers, partitions = self._sleepers, self._partitions
        lane = lane_of(call)
        last = self._last_calls.get((worker, lane))
        self._last_calls[worker, lane] = call
        if outcomes and then is not None and call != last and self._rests(worker, then):
            by = Caller(worker, call, lane, False, False, False)
            return await self._settle_asleep(outcomes, by, then)
        sleepers.rest_until.pop(worker, None)
        sleepers.wake(worker)
        if then is None:
            await sleepers.stop_looking(worker)
            queues: Sequence[QueueName] = ()
        else:
            sleepers.claimed_from[worker] = queues = then.queues
        repeated, asleep = last is None or last == call, sleepers.slots.get(worker, 1) > 0
        by = Caller(worker, call, lane, repeated, asleep, True)
        if (
            len(queues) == 1
            and partitions.known.get(queues[0]) == 1
            and all(o.queue == queues[0] for o in outcomes)
        ):
            assert then is not None
            at = Partition(partitions.space.prefix(queues[0]), queues[0], "")
            return await self._exchange(at, outcomes, by, then.limit, then.lease_ms, not then.alone)
        return await self._settle_several(outcomes, by, then)

    async def _settle_several(
        self, outcomes: Sequence[AnyOutcome], by: Caller, then: Claim | None
    ) -> Settled:
        """Exchange with several queues or partitions in turn: each may fill what is left to claim.

        A peek at their counters shows which of them are worth a call. A repeated call goes
        everywhere, because the leases it was granted may be where nothing waits any more. The
        worker falls asleep only if no queue has anything. A worker that is awake is removed from
        the sleepers of every queue: a queue that counts a busy worker as asleep would wake it for
        nothing.
        """
        by = by._replace(sleepy=False)
        by_partition: dict[Partition, list[AnyOutcome]] = {}
        for o in outcomes:
            by_partition.setdefault(await self._partitions.of_token(o.queue, o.token), []).append(o)
        claims = await self._partitions_to_claim(then, by.call)
        total = _Total()
        for at in [at for at in by_partition if at not in claims]:
            total.add(await self._exchange(at, by_partition[at], by, -1, 0, False), at.prefix)
        if then is None:
            return total.settled()
        if by.repeated:
            await self._claim_at(claims, by_partition, by, then, total)
        else:
            first, rest = claims[:_FIRST_PEEK], claims[_FIRST_PEEK:]
            await self._peek_and_claim(first, by_partition, by, then, total, more=bool(rest))
            if rest:
                await self._peek_and_claim(rest, by_partition, by, then, total)
        if not total.leases and not outcomes and not total.left:
            await self._fall_asleep(claims, by, then, total)
        elif by.asleep:
            prefixes = {self._partitions.space.prefix(queue) for queue in then.queues}
            await self._sleepers.set_awake(by.worker, prefixes - total.visited)
        return total.settled()

    def _rests(self, worker: str, then: Claim) -> bool:
        """Whether the worker is asleep in the partitioned queues that it claims from."""
        return (
            self._sleepers.rests(worker) is not None
            and set(then.queues) == set(self._sleepers.claimed_from.get(worker, ()))
            and all(self._partitions.known.get(queue, 1) > 1 for queue in then.queues)
        )

    async def _settle_asleep(
        self, outcomes: Sequence[AnyOutcome], by: Caller, then: Claim
    ) -> Settled:
        """Settle runs of a worker that stays asleep: its other slots wait for a wake-up.

        It claims only from the partitions that it visits. A look into all of them would find
        nothing, because a job that was put since would have woken a worker.
        """
        sleepers, worker = self._sleepers, by.worker
        slots, until = sleepers.slots[worker], sleepers.rest_until.pop(worker)
        by_partition: dict[Partition, list[AnyOutcome]] = {}
        for o in outcomes:
            by_partition.setdefault(await self._partitions.of_token(o.queue, o.token), []).append(o)
        total = _Total()
        await self._claim_at(list(by_partition), by_partition, by, then, total)
        sleepers.slots[worker] = slots  # it is still recorded as asleep, with these slots
        if not total.leases and not total.left:
            sleepers.rest_until[worker] = until
            left = sleepers.rests(worker)
            total.asleep = left is not None
            total.dues.append(int((left or 0) * 1000))
        return total.settled()

    async def _peek_and_claim(
        self,
        claims: list[Partition],
        outcomes: dict[Partition, list[AnyOutcome]],
        by: Caller,
        then: Claim,
        total: _Total,
        *,
        more: bool = False,
    ) -> None:
        """Claim where the counters say that jobs wait, and settle outcomes everywhere."""
        if len(total.leases) < then.limit and not total.last_chance:
            peeks = await self._peek(claims, total)
            total.dues += [p.due_in for p in peeks.values() if not p.ready and p.due_in is not None]
            claims = [at for at in claims if at in outcomes or (at in peeks and peeks[at].ready)]
        else:
            claims = [at for at in claims if at in outcomes]
        await self._claim_at(claims, outcomes, by, then, total, more=more)

    async def _fall_asleep(
        self, claims: list[Partition], by: Caller, then: Claim, total: _Total
    ) -> None:
        """Count the worker as asleep in every queue, then look once more.

        A job that came between the peek and falling asleep wakes nobody, so this look must find it.
        """
        await self._sleepers.fall_asleep(then.queues, by.worker, then.limit)
        partitions = [at for at in claims if at.suffix]
        peeks = await self._peek(partitions, total)
        if partitions and not peeks and total.unavailable is not None:
            raise total.unavailable
        ready = [at for at, peek in peeks.items() if peek.ready]
        whole = [at for at in claims if not at.suffix]
        again = by._replace(call=f"{by.call}+", asleep=False, sleepy=True)
        await self._claim_at([*whole, *ready], {}, again, then, total)
        total.asleep = True
        if total.unavailable is not None:
            total.dues.append(_RETRY_MS)
        if not total.leases and not total.left:
            self._sleepers.rest(by.worker, min(total.dues, default=None))

    async def _partitions_to_claim(self, then: Claim | None, call: str) -> list[Partition]:
        """Queues in the claim's order. Each call begins with another partition of a queue."""
        partitions: list[Partition] = []
        for queue in then.queues if then else ():
            prefixes = await self._partitions.prefixes(queue)
            if len(prefixes) == 1:
                partitions.append(Partition(prefixes[0], queue, ""))
                continue
            turn = keys.turn_of(call, len(prefixes))
            partitions += [
                Partition(prefixes[n], queue, f"~{n}")
                for n in (*range(turn, len(prefixes)), *range(turn))
            ]
        return partitions

    async def _claim_at(
        self,
        partitions: list[Partition],
        outcomes: dict[Partition, list[AnyOutcome]],
        by: Caller,
        then: Claim,
        total: _Total,
        *,
        more: bool = False,
    ) -> None:
        """Exchange with these partitions in turn. `more`: the caller goes on with others."""
        for at in partitions:
            room = 0 if total.last_chance else then.limit - len(total.leases)
            if room > 0 or at in outcomes:
                mine = outcomes.get(at, ())
                company = bool(total.leases) or not then.alone
                try:
                    reply = await self._exchange(at, mine, by, room, then.lease_ms, company)
                except CorruptStore as error:
                    if mine or (len(partitions) == 1 and not more):
                        raise
                    log.error("%s; this call goes on with the other queues", error)
                else:
                    total.add(reply, at.prefix)

    async def _peek(
        self, partitions: Sequence[Partition], total: _Total
    ) -> dict[Partition, QueuePeek]:
        """What the counters of queues or partitions say. All are read at once.

        Those of a primary that is unavailable are left out: workers go on with the others.
        """
        now = int(self._calls.now() or time.time() * 1000)
        stored = await self._servers.get_all([keys.counters(at.prefix) for at in partitions])
        found: dict[Partition, QueuePeek] = {}
        for at, data in zip(partitions, stored, strict=True):
            if isinstance(data, StoreUnavailable):
                total.unavailable = data
            else:
                found[at] = peek_at_counters(data, now)
        return found


# `extend` and `note`: what a worker does with leases it holds.

_EXTEND = function("extend")
_STATES: dict[str, LeaseState] = {"h": "held", "l": "lost", "c": "cancel"}


class Leases:
    """Renews leases, and stores progress, checkpoints, log lines and steps of running jobs."""

    def __init__(self, calls: Calls, partitions: Partitions) -> None:
        self._calls = calls
        self._partitions = partitions

    async def extend(self, leases: Sequence[LeaseRef], *, lease_ms: int) -> list[LeaseState]:
        """See HotStore."""
        groups = await self._by_partition(leases)
        states: list[LeaseState] = ["lost"] * len(leases)

        async def one(prefix: str, suffix: str, positions: list[int]) -> None:
            args: list[Argument] = [self._calls.now(), lease_ms]
            for n in positions:
                args += (leases[n].id, leases[n].token.removesuffix(suffix))
            reply = await self._calls.fcall_list(_EXTEND, prefix, args)
            for n, letter in zip(positions, reply.decode(), strict=True):
                states[n] = _STATES[letter]

        await asyncio.gather(
            *(one(prefix, suffix, positions) for (prefix, _, suffix), positions in groups.items())
        )
        return states

    async def note(self, notes: Sequence[Note]) -> list[LeaseState]:
        """See HotStore."""
        for each in notes:
            check_steps(each.steps)
        groups = await self._by_partition([note.lease for note in notes])
        states: list[LeaseState] = ["lost"] * len(notes)
        for (prefix, _, suffix), positions in groups.items():
            args: list[Argument] = []
            for n in positions:
                args += packing.note(notes[n], suffix)
            # Checkpoints and steps are as durable as a settled outcome. Others need not be.
            durable = any(notes[n].durable for n in positions)
            reply = await self._calls.fcall("note", prefix, *args, confirmed=durable)
            for n, letter in zip(positions, reply.decode(), strict=True):
                states[n] = _STATES[letter]
        return states

    async def _by_partition(self, leases: Sequence[LeaseRef]) -> dict[Partition, list[int]]:
        groups: dict[Partition, list[int]] = {}
        for n, lease in enumerate(leases):
            partition = await self._partitions.of_token(lease.queue, lease.token)
            groups.setdefault(partition, []).append(n)
        return groups
