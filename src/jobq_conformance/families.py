"""Families of jobs, for the tests of flows: a parent waits for its children."""

from __future__ import annotations

from jobq.core.records.jobs import Lease
from jobq_conformance.kit import Desk


def results(lease: Lease) -> dict[str, bytes | None]:
    """The results that the children delivered, by id."""
    return {i.job.id: i.result for i in lease.inputs}


async def family(q: Desk, *children: str, parent: str = "p", **options: object) -> None:
    """Put a parent and the children it waits for, in one call."""
    edges = tuple(q.edge(id) for id in children)
    await q.store.put([*(q.spec(id) for id in children), q.spec(parent, after=edges, **options)])


async def take(q: Desk, *ids: str) -> dict[str, Lease]:
    """Claim all jobs, which must be exactly these."""
    leases = {lease.id: lease for lease in await q.claim(100)}
    assert sorted(leases) == sorted(ids)
    return leases
