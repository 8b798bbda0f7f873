"""Tenants and what they use."""

from __future__ import annotations

from jobq.web.data.view import Shape, View


class TenantRow(Shape):
    """A tenant, summed over its queues."""

    tenant: str
    queues: int
    counts: dict[str, int]
    """By state."""
    depth: int
    workers: int
    completed_per_minute: float
    """Over the last five minutes."""
    failed_per_minute: float


class TenantList(Shape):
    """Tenants by name. At most 200, of at most 500 queues."""

    tenants: tuple[TenantRow, ...]
    complete: bool


async def tenants(view: View) -> TenantList:
    """The tenants that the caller may see."""
    raise NotImplementedError
