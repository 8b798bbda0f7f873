"""Families of jobs, for the tests of flows: a parent waits for its children."""

from __future__ import annotations

from jobq.core.records import Lease
from jobq.stores.conformance.kit import Desk


def results(lease: Lease) -> dict[str, bytes | None]:
    """What the children delivered, by their ids."""
    return {i.job.id: i.result for i in lease.inputs}


async def family(q: Desk, *children: str, parent: str = "p", **options: object) -> None:
    """A parent that waits for these children, put in one call."""
    edges = tuple(q.edge(id) for id in children)
    await q.store.put([*(q.spec(id) for id in children), q.spec(parent, after=edges, **options)])


async def take(q: Desk, *ids: str) -> dict[str, Lease]:
    """These are in line, and no others."""
    leases = {lease.id: lease for lease in await q.claim(100)}
    assert sorted(leases) == sorted(ids)
    return leases
