"""Purging waiting jobs: stale entries of the waiting list cost time too, so a call skips a few."""

from __future__ import annotations

from jobq.core.records.commands import Cancel
from jobq.core.records.jobs import JobKey, QueueName
from jobq.core.records.states import State
from jobq.stores.valkey import keys
from jobq.stores.valkey.store import ValkeyStore
from tests.stores.valkey.jobs import spec


async def test_purge_pending_finds_jobs_behind_many_cancelled_ones(
    store: ValkeyStore, queue: QueueName
) -> None:
    ids = [f"j{n:04d}" for n in range(2600)]
    await store.put([spec(queue, id) for id in ids[:2000]])
    await store.put([spec(queue, id) for id in ids[2000:]])
    await store.alter([Cancel(job=JobKey(queue, id)) for id in ids[:2590]])
    cleared, _, more = await store.calls.fcall(
        "clear",
        keys.Space().prefix(queue),
        store.calls.now(),
        keys.Space().prefix(queue),
        "",
        0,
        100,
    )
    assert (cleared, more) == (0, 1)
    assert await store.purge_pending(queue, limit=100) == 10
    assert (await store.count(queue))[State.WAITING] == 0
