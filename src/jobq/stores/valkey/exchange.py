"""One exchange with one queue or partition: end runs, then claim jobs."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple

from jobq.core.records import (
    AnyOutcome,
    Block,
    Complete,
    JobKey,
    LeaseRef,
    Settled,
)
from jobq.stores.valkey import job_replies, packing
from jobq.stores.valkey.calls import Calls
from jobq.stores.valkey.edges import Edges
from jobq.stores.valkey.functions import function
from jobq.stores.valkey.mail import Mail
from jobq.stores.valkey.partitions import Partition, Partitions
from jobq.stores.valkey.sleepers import Sleepers
from jobq.stores.valkey.wire import Argument

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
        leases = job_replies.leases(queue, granted, lease_ms, suffix)
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
