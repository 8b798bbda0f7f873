"""Checks the exchanges of a real run against the rules of the model.

The model's store grants a lease only if nobody holds the job, applies an outcome only under the
job's lease, and returns the first reply to a repeated exchange. A real store may do nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from jobq.core.records.jobs import Claim, JobKey, Lease, LeaseRef, Settled, lane_of
from tests.simulation.shown_calls import Exchanged


@dataclass
class Held:
    """A lease, as the model knows it."""

    token: str
    expires_ms: int


@dataclass
class LeaseTable:
    """Who holds which job."""

    held: dict[JobKey, Held] = field(default_factory=dict)
    tokens: set[tuple[JobKey, str]] = field(default_factory=set)
    attempts: dict[tuple[JobKey, int], int] = field(default_factory=dict)
    last: dict[tuple[str, int], tuple[str, Settled]] = field(default_factory=dict)
    # By worker and call: all that it was granted. A late call is executed more than once.
    granted: dict[tuple[str, str], set[tuple[str, str, int]]] = field(default_factory=dict)
    free: frozenset[str] = frozenset()
    timed: bool = True

    def is_valid(self, key: JobKey, at_ms: int) -> bool:
        """Whether somebody certainly holds the job at this time."""
        held = self.held.get(key)
        return (
            self.timed and held is not None and at_ms < held.expires_ms and key.id not in self.free
        )


def replay(
    exchanged: Iterable[Exchanged], free: frozenset[str] = frozenset(), *, timed: bool = True
) -> list[str]:
    """What a run did that the model cannot do.

    Operators may have ended the jobs of `free`. Without `timed`, the clock has jumped, and any
    lease may have expired."""
    table = LeaseTable(free=free, timed=timed)
    found: list[str] = []
    for each in exchanged:
        step = _STEPS[each.name]
        found += (f"{each.process} at {each.at_ms}: {what}" for what in step(table, each))
    return found


def _settle(table: LeaseTable, each: Exchanged) -> Iterator[str]:
    call, worker, reply = each.kwargs["call"], each.kwargs["worker"], each.result
    caller = (worker, lane_of(call))
    remembered = table.last.get(caller)
    if remembered is not None and remembered[0] == call:
        yield from _repeated(table, each, remembered[1])
        return
    stale = set(reply.stale)
    for outcome in each.args[0]:
        ref = LeaseRef(outcome.queue, outcome.id, outcome.token)
        yield from _applied(table, ref, ref in stale, each.at_ms)
    claim: Claim | None = each.kwargs.get("then")
    if reply.leases and (claim is None or len(reply.leases) > claim.limit):
        yield f"{len(reply.leases)} leases for {claim}"
    for lease in reply.leases:
        yield from _granted(table, lease)
        table.granted.setdefault((worker, call), set()).add((lease.id, lease.token, lease.attempt))
    if each.args[0] or reply.leases:
        table.last[caller] = (call, reply)


def _repeated(table: LeaseTable, each: Exchanged, first: Settled) -> Iterator[str]:
    call, again = each.kwargs["call"], each.result
    if again.stale != first.stale:
        yield f"the repeated call {call} reports {again.stale} as stale, not {first.stale}"
    before = table.granted.get((each.kwargs["worker"], call), set())
    for lease in again.leases:
        if (lease.id, lease.token, lease.attempt) not in before:
            yield f"the repeated call {call} has the new lease {lease.id}/{lease.attempt}"
    got = {lease.token for lease in again.leases}
    for lease in first.leases:
        key = JobKey(lease.queue, lease.id)
        held = table.held.get(key)
        if held is None or held.token != lease.token or not table.is_valid(key, each.at_ms):
            continue
        if lease.token not in got:
            yield f"the repeated call {call} has lost the lease {lease.id}/{lease.attempt}"


def _applied(table: LeaseTable, ref: LeaseRef, stale: bool, now_ms: int) -> Iterator[str]:
    key = JobKey(ref.queue, ref.id)
    held = table.held.get(key)
    if held is None or held.token != ref.token:
        if not stale:
            yield f"an outcome of {ref.id} without a lease was applied"
        return
    if stale and table.is_valid(key, now_ms):
        yield f"an outcome of {ref.id} under its lease was refused"
    del table.held[key]


def _granted(table: LeaseTable, lease: Lease) -> Iterator[str]:
    key = JobKey(lease.queue, lease.id)
    if table.is_valid(key, lease.started_ms):
        yield f"{lease.id}/{lease.attempt} was granted while another lease of it was valid"
    if (key, lease.token) in table.tokens:
        yield f"{lease.id}/{lease.attempt} was granted under the token of an earlier lease"
    before = table.attempts.get((key, lease.life), 0)
    if lease.attempt <= before:
        yield f"{lease.id}/{lease.attempt} was granted after attempt {before}"
    table.attempts[key, lease.life] = lease.attempt
    table.tokens.add((key, lease.token))
    table.held[key] = Held(lease.token, lease.expires_ms)


def _extend(table: LeaseTable, each: Exchanged) -> Iterator[str]:
    for ref, state in zip(each.args[0], each.result, strict=True):
        key = JobKey(ref.queue, ref.id)
        held = table.held.get(key)
        mine = held is not None and held.token == ref.token
        if state == "lost":
            if mine and table.is_valid(key, each.at_ms):
                yield f"the lease of {ref.id} is valid, and was reported as lost"
        elif not mine or held is None:
            yield f"a lease of {ref.id} that does not exist was renewed"
        else:
            held.expires_ms = each.at_ms + each.kwargs["lease_ms"]


def _retire(table: LeaseTable, each: Exchanged) -> Iterator[str]:
    """The store forgets the exchanges of a worker that has stopped. A late copy of its last one is
    a new exchange then."""
    for caller in [caller for caller in table.last if caller[0] == each.args[0]]:
        del table.last[caller]
    yield from ()


_STEPS = {"settle": _settle, "extend": _extend, "retire": _retire}
