"""Whose limit of stalls applies: the call's, the task's, or the default of 3."""

from __future__ import annotations

from jobq.core.records.queues import QueueConfig
from jobq.core.records.states import State
from jobq_conformance.kit import LEASE, SECOND, Desk
from jobq_conformance.roles import needs
from jobq_conformance.stalling import claimed, stall

pytestmark = needs("leases", "upkeep", "limits")


async def test_what_workers_declare_for_a_task_holds_for_jobs_that_wait_already(q: Desk) -> None:
    await q.put("a")
    await q.store.declare(q.queue, QueueConfig(max_stalls={"task": 1, "other": 7}))
    await stall(q, "a")
    assert await claimed(q) == [("a", True)]
    q.clock.advance(LEASE + 1)
    assert await q.claim() == []
    record = await q.get("a")
    assert (record.state, record.stalls) == (State.FAILED, 2)


async def test_a_value_given_per_call_wins_over_the_tasks(q: Desk) -> None:
    await q.store.declare(q.queue, QueueConfig(max_stalls={"task": 0}))
    await q.put_one("own", max_stalls=3)
    await q.put_one("tasks")
    for _ in range(3):
        await q.claim(2, lease_ms=SECOND)
        q.clock.advance(2 * SECOND)
    assert await claimed(q) == [("own", True)]
    assert await q.states("own", "tasks") == ["active", "failed"]


async def test_declared_limits_are_merged_and_a_task_back_at_the_default_has_none(q: Desk) -> None:
    await q.store.declare(q.queue, QueueConfig(max_stalls={"one": 1, "two": 2, "three": 3}))
    record = await q.store.declare(q.queue, QueueConfig(max_stalls={"two": 5, "four": 0}))
    assert record.max_stalls == {"one": 1, "two": 5, "four": 0}
    record = await q.store.declare(q.queue, QueueConfig(max_stalls={"one": 3}))
    assert record.max_stalls == {"two": 5, "four": 0}
    assert (await q.store.declare(q.queue, QueueConfig())).max_stalls == {"two": 5, "four": 0}
    (listed,) = [each for each in await q.store.queues(q.queue.tenant) if each.queue == q.queue]
    assert listed.max_stalls == {"two": 5, "four": 0}
    record = await q.store.declare(q.queue, QueueConfig(max_stalls={"two": 3, "four": 3}))
    assert record.max_stalls == {}


async def test_the_declared_limit_of_one_task_is_not_another_tasks(q: Desk) -> None:
    await q.store.declare(q.queue, QueueConfig(max_stalls={"brittle": 0, "très — brittle": 0}))
    await q.store.put(
        [
            q.spec("a", name="brittle"),
            q.spec("b", name="sturdy"),
            q.spec("c", name="très — brittle"),
        ]
    )
    await q.claim(3, lease_ms=SECOND)
    q.clock.advance(2 * SECOND)
    await q.tick()
    assert await q.states("a", "b", "c") == ["failed", "waiting", "failed"]
    failure = (await q.get("a")).failure
    assert failure is not None
    assert "max_stalls is 0" in failure.message
