"""What the recorded data of jobq 0.1 contains, on whichever store it was recorded."""

from __future__ import annotations

from jobq.core.records.jobs import Claim, Complete, JobKey, QueueName
from jobq.stores.base import Store

WORK, KEYED = QueueName("default", "work"), QueueName("default", "keyed")
WRITTEN_MS = 1_700_000_000_000
RUNNABLE = ("child", "delayed", "failed", "gone", "parent", "retried", "unique", "waiting")
"""The jobs of WORK that run after two hours, once the failed one is run again."""
RUNNABLE_KEYED = ("k1", "k2", "k3")


async def check_jobs(store: Store) -> None:
    """The store still has the jobs, the schedule and the settings."""
    counts = await store.count(WORK)
    assert {state.value: n for state, n in counts.items() if n} == {
        "completed": 1,
        "failed": 1,
        "delayed": 2,
        "active": 1,
        "cancelled": 1,
        "waiting": 4,
        "blocked": 1,
    }
    done, failed, parent = await store.get(
        [JobKey(WORK, id) for id in ("done", "failed", "parent")]
    )
    assert done is not None
    assert done.result == b"7"
    assert await store.logs(JobKey(WORK, "done")) == ["one"]
    assert failed is not None
    assert failed.failure is not None
    assert failed.failure.message == "boom"
    assert parent is not None
    assert parent.children == (JobKey(WORK, "child"),)
    assert [record.spec.id for record in await store.list_schedules(WORK)] == ["nightly"]
    (record,) = [record for record in await store.queues("default") if record.queue == WORK]
    assert (record.limits.declared.limit, record.limits.version) == (5, 2)
    assert record.dead_letters == "dead"


async def drain(store: Store, *queues: QueueName) -> list[str]:
    """Complete whatever can be claimed. Returns the ids, sorted."""
    ended: list[str] = []
    for n in range(25):
        claim = Claim(queues=queues, limit=3, lease_ms=15_000)
        leases = (await store.settle([], worker="new", call=f"claim{n}", then=claim)).leases
        ended += [lease.id for lease in leases]
        outcomes = [Complete(queue=lease.queue, id=lease.id, token=lease.token) for lease in leases]
        await store.settle(outcomes, worker="new", call=f"settle{n}")
    return sorted(ended)
