"""A store for the relay's tests, and functions that add events to its log."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from jobq.core.records.jobs import Claim, Complete, JobSpec, QueueName
from jobq.stores import open_store
from jobq.stores.base import Store

QUEUE = QueueName("acme", "mail")


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    """A SQLite file, so that a second handle sees the same data."""
    async with open_store(f"sqlite:///{tmp_path}/jobs.db") as handle:
        yield handle


async def put(store: Store, *ids: str, queue: QueueName = QUEUE) -> None:
    """Enqueue jobs, with one event each."""
    await store.put(
        [JobSpec(queue=queue, id=id, name="send", payload=b"[[],{}]", given_id=True) for id in ids]
    )


async def work(store: Store, queue: QueueName = QUEUE) -> int:
    """Start and complete all waiting jobs, with two events each."""
    claim = Claim(queues=(queue,), limit=1000, lease_ms=60_000)
    leases = (await store.settle([], worker="w-1", call="1", then=claim)).leases
    await store.settle(
        [Complete(queue=lease.queue, id=lease.id, token=lease.token) for lease in leases],
        worker="w-1",
        call="2",
    )
    return len(leases)
