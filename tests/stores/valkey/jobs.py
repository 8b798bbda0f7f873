"""Helpers that put, claim and settle jobs of a store."""

from __future__ import annotations

from itertools import count

from jobq.core.records.jobs import (
    Claim,
    Complete,
    Fail,
    Failure,
    JobSpec,
    Lease,
    QueueName,
    Settled,
)
from jobq.stores.base import Store

_calls = count(1)


def spec(queue: QueueName, id: str, **options: object) -> JobSpec:
    """A job with these options."""
    fields: dict[str, object] = {"name": "task", "payload": b"[[],{}]", **options}
    return JobSpec(queue=queue, id=id, **fields)  # type: ignore[arg-type]


def done(lease: Lease, result: bytes = b"1") -> Complete:
    """The outcome of a run that returned."""
    return Complete(queue=lease.queue, id=lease.id, token=lease.token, result=result)


def failed(lease: Lease) -> Fail:
    """The outcome of a run that failed for good."""
    why = Failure(reason="error", type="ValueError", message="boom")
    return Fail(queue=lease.queue, id=lease.id, token=lease.token, failure=why)


async def exchange(
    store: Store,
    queue: QueueName,
    *outcomes: Complete,
    n: int = 1,
    worker: str = "w1",
    lease_ms: int = 30_000,
) -> Settled:
    """Settle these outcomes and claim up to n jobs."""
    claim = Claim(queues=(queue,), limit=n, lease_ms=lease_ms)
    return await store.settle(outcomes, worker=worker, call=f"x{next(_calls)}", then=claim)


async def take(
    store: Store, queue: QueueName, n: int = 1, *, worker: str = "w1", lease_ms: int = 30_000
) -> list[Lease]:
    """Claim up to n jobs."""
    return list((await exchange(store, queue, n=n, worker=worker, lease_ms=lease_ms)).leases)
