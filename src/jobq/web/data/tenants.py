"""Tenants and what they use."""

from __future__ import annotations

import asyncio
from collections import Counter

from jobq.core.records.queues import QueueRecord
from jobq.core.records.states import State
from jobq.core.rules.limits import COUNTED_STATES
from jobq.operations import listing
from jobq.web.data.queues import Rates, all_counts, rates
from jobq.web.data.view import Shape, View

_MAX_QUEUES = 200
"""Queues that are summed up: two short store calls each."""
_MINUTES = 5


class TenantRow(Shape, frozen=True, kw_only=True):
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


class TenantList(Shape, frozen=True, kw_only=True):
    """Tenants by name. Those of the first 200 queues."""

    tenants: tuple[TenantRow, ...]
    complete: bool


async def tenants(view: View) -> TenantList:
    """The tenants that the caller may see."""
    records = await listing.queues(view.store)
    listed = records[:_MAX_QUEUES]
    figures = await asyncio.gather(*(_figures(view, record) for record in listed))
    workers = await view.store.workers() if view.may("workers") else []
    rows = []
    for tenant in dict.fromkeys(record.queue.tenant for record in listed):
        own = [
            each
            for record, each in zip(listed, figures, strict=True)
            if record.queue.tenant == tenant
        ]
        counts: Counter[State] = Counter()
        for found, _ in own:
            counts.update(found)
        rows.append(
            TenantRow(
                tenant=tenant,
                queues=len(own),
                counts=all_counts(counts),
                depth=sum(counts[state] for state in COUNTED_STATES),
                workers=sum(any(name.tenant == tenant for name in each.queues) for each in workers),
                completed_per_minute=sum(each.completed for _, each in own),
                failed_per_minute=sum(each.failed for _, each in own),
            )
        )
    return TenantList(tenants=tuple(rows), complete=len(listed) == len(records))


async def _figures(view: View, record: QueueRecord) -> tuple[dict[State, int], Rates]:
    counts = await view.store.count(record.queue)
    minutes = await view.store.metrics(record.queue, minutes=_MINUTES)
    return counts, rates(minutes, view.now_ms())
