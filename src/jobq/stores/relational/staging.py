"""Members of flows that are not jobs yet: stored, discarded and swept.

Each row of `staged` has a place `n` in its flow. Places count up from 1 in the order in which the
members came. A member that waits for others has the negative of its place, so those come first in
the order of n, the last one before the others (submission.py says why). Rows from REPRESENTED on
are not members: they say which job represents a member that became no job, because another job
holds its unique lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from typing import Any

import msgspec
from msgspec.structs import replace

from jobq.core.records.defaults import FLOW_MS
from jobq.core.records.jobs import Edge, JobKey, JobSpec, QueueName
from jobq.stores.relational import put
from jobq.stores.relational.tx import Tx

STEP = 500
"""What one transaction may cost that makes jobs of members: a member counts 1, and so do an edge
and 8 KiB of a member. 500 take about 20 ms on SQLite and 100 ms on PostgreSQL, in which no other
call that writes to the same queues is served."""
BYTES = 8192
"""Bytes of a member that cost about as much as an edge."""
FIRST = -(2**31)
"""Before the first place."""
REPRESENTED = 2**30
"""The first place of rows that name the jobs which represent members."""


class FlowState(IntEnum):
    """`flows.done`."""

    OPEN = 0  # members are being staged
    COMPLETE = 1  # all members are jobs
    SUBMITTED = 2  # it is decided that all members become jobs
    DISCARDED = 3  # no member will become a job, and some are still to be deleted


class Part(msgspec.Struct, frozen=True, array_like=True):
    """Some edges of a member that has more than STEP."""

    queue: QueueName
    id: str
    ordinal: int  # of the first of these edges
    edges: tuple[Edge, ...]
    last: bool


def stage(tx: Tx, tenant: str, flow: str, specs: Sequence[JobSpec], begins: bool) -> FlowState:
    """Store members of a flow. Returns the state of the flow: if it is not open, nothing is stored.

    A member that is stored already stays as it is. Without `begins`, a flow that does not exist was
    discarded."""
    if begins:
        tx.execute(tx.sql.ties["begin_flow"], (tenant, flow, tx.now))
    found = tx.execute(tx.sql.ties["flow"], (tenant, flow)).fetchone()
    state = FlowState.DISCARDED if found is None else FlowState(found[0])
    if state is not FlowState.OPEN:
        return state
    by_key = {JobKey(spec.queue, spec.id): spec for spec in reversed(specs)}
    known = members(tx, tenant, flow, by_key)
    new = [
        spec
        for spec in specs
        if (key := JobKey(spec.queue, spec.id)) not in known and by_key.pop(key, None) is not None
    ]
    last = _last_n(tx, tenant, flow)
    rows: list[tuple[Any, ...]] = []
    for spec, takes in zip(new, put.reserve_places(tx, new), strict=True):
        some = _rows(spec, last, int(takes))
        rows += ((tenant, flow, *row) for row in some)
        last += len(some)
    tx.many(tx.sql.ties["stage"], rows)
    return state


def _last_n(tx: Tx, tenant: str, flow: str) -> int:
    return max(map(abs, ends(tx, tenant, flow)))


def ends(tx: Tx, tenant: str, flow: str) -> tuple[int, int]:
    """The lowest and the highest place of a flow. They change when members are added."""
    lowest, highest = tx.execute(tx.sql.ties["staged_ends"], (tenant, flow)).fetchone()
    return lowest, highest


def _rows(spec: JobSpec, last: int, takes: int) -> list[tuple[Any, ...]]:
    """The rows of a member after the last one: n, weight, place in its queue, queue, id, spec.

    If it has more than STEP edges, they have rows of their own, and an edge to nobody says so. Of
    several edges to one job, the first counts."""
    by_job: dict[JobKey, Edge] = {}
    for edge in spec.after:
        by_job.setdefault(edge.job, edge)
    edges = tuple(by_job.values())
    if len(edges) <= STEP:
        n = -last - 1 if edges else last + 1
        return [_row(n, replace(spec, after=edges), takes, len(edges))]
    starts = range(0, len(edges), STEP)
    parts = [
        Part(spec.queue, spec.id, at, edges[at : at + STEP], at == starts[-1]) for at in starts
    ]
    # The lowest n comes first: that of the member, then those of its parts in their order.
    first = -last - len(parts) - 1
    head = replace(spec, after=(Edge(JobKey(spec.queue, ""), data=False),))
    rows = [_row(first, head, takes, 1)]
    for n, part in enumerate(parts, first + 1):
        packed = msgspec.msgpack.encode(part)
        rows.append((n, 1 + len(part.edges), 0, spec.queue.queue, "", packed))
    return rows


def _row(n: int, spec: JobSpec, takes: int, edges: int) -> tuple[Any, ...]:
    packed = msgspec.msgpack.encode(spec)
    return n, 1 + edges + len(packed) // BYTES, takes, spec.queue.queue, spec.id, packed


def members(tx: Tx, tenant: str, flow: str, keys: Iterable[JobKey]) -> dict[JobKey, str | None]:
    """Which of these are members of a flow that are not jobs yet, or will be none: those have the
    id of the job that represents them."""
    by_queue: dict[QueueName, list[str]] = {}
    for key in keys:
        by_queue.setdefault(key.queue, []).append(key.id)
    return {
        JobKey(queue, id): None if other is None else other.decode()
        for queue, ids in by_queue.items()
        for id, other in tx.execute(
            tx.sql.ties["staged_among"], (tenant, flow, queue.queue, tx.listed(ids))
        ).fetchall()
    }


def is_small(tx: Tx, tenant: str, flow: str) -> bool:
    """Whether one step makes jobs of all members."""
    found = weights(tx, tenant, flow, FIRST, STEP + 1)
    return sum(weight for _, weight in found) <= STEP


def weights(tx: Tx, tenant: str, flow: str, after: int, limit: int) -> list[tuple[int, int]]:
    """The next members after a place, and what they cost."""
    return tx.execute(tx.sql.ties["next_weights"], (tenant, flow, after, limit)).fetchall()


def read_some(
    tx: Tx, tenant: str, flow: str, after: int, until: int
) -> Iterator[tuple[int, int, JobSpec | Part]]:
    """The members between two places, each with its place and with 1 if it has one in its queue."""
    found = tx.execute(tx.sql.ties["next_staged"], (tenant, flow, after, until)).fetchall()
    for n, takes, id, packed in found:
        is_part = id == "" and n < 0
        kind: type[JobSpec | Part] = Part if is_part else JobSpec
        yield n, takes, msgspec.msgpack.decode(packed, type=kind)


def unstage(tx: Tx, tenant: str, flow: str) -> list[JobSpec]:
    """All members of a small flow, to be put now. The flow is complete."""
    specs = [
        msgspec.msgpack.decode(data, type=JobSpec)
        for (data,) in tx.execute(tx.sql.ties["staged"], (tenant, flow))
    ]
    delete_some(tx, tenant, flow, STEP)
    set_state(tx, tenant, flow, FlowState.COMPLETE)
    return specs


def set_state(tx: Tx, tenant: str, flow: str, state: FlowState) -> None:
    """Change the state of a flow."""
    tx.execute(tx.sql.ties["set_flow"], (int(state), tx.now, tenant, flow))


def represent(tx: Tx, tenant: str, flow: str, n: int, member: JobKey, id: str) -> None:
    """Remember which job represents a member."""
    row = (REPRESENTED + abs(n), 1, 0, member.queue.queue, member.id, id.encode())
    tx.execute(tx.sql.ties["stage"], (tenant, flow, *row))


def discard(tx: Tx, tenant: str, flow: str) -> FlowState | None:
    """Delete some members of a flow of which a call was refused, and free their places.

    Returns DISCARDED if there are more. Until then, the flow accepts no members. None: the flow is
    deleted. A flow that is submitted stays, and its state is returned."""
    found = tx.execute(tx.sql.ties["flow"], (tenant, flow)).fetchone()
    if found is None or found[0] not in (FlowState.OPEN, FlowState.DISCARDED):
        return None if found is None else FlowState(found[0])
    if delete_some(tx, tenant, flow, STEP) < STEP:
        tx.execute(tx.sql.ties["drop_flow"], (tenant, flow))
        return None
    set_state(tx, tenant, flow, FlowState.DISCARDED)
    return FlowState.DISCARDED


def delete_some(tx: Tx, tenant: str, flow: str, limit: int) -> int:
    """Delete members and free their places. Returns how many."""
    rows = tx.execute(tx.sql.ties["next_places"], (tenant, flow, limit)).fetchall()
    if rows:
        put.free_places(tx, [(QueueName(tenant, queue), place) for _, place, queue in rows])
        tx.execute(tx.sql.ties["unstage"], (tenant, flow, FIRST, rows[-1][0]))
    return len(rows)


def sweep(tx: Tx, limit: int) -> int:
    """Delete flows that were never submitted, and old complete ones. Returns how many steps."""
    steps = 0
    old = tx.execute(tx.sql.ties["old_flows"], (tx.now - FLOW_MS, limit)).fetchall()
    for tenant, flow, state in old:
        if steps >= limit:
            break
        if state == FlowState.COMPLETE:
            tx.execute(tx.sql.ties["drop_flow"], (tenant, flow))
            steps += 1
        else:
            more = discard(tx, tenant, flow) is FlowState.DISCARDED
            steps += STEP if more else 1
    return steps
