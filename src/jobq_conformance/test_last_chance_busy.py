"""A worker that runs other jobs leaves a job on its last chance to a worker that is alone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from jobq.core.records.queues import Limits, QueueConfig, RateData, Tokens, Window
from jobq_conformance.kit import SECOND, Desk, complete
from jobq_conformance.roles import needs
from jobq_conformance.stalling import claimed, stall

pytestmark = needs("leases", "upkeep", "limits")


async def frail(q: Desk, id: str = "frail", **fields: Any) -> None:
    """A job on its last chance, at the head of its queue."""
    await q.put_one(id, max_stalls=1, **fields)
    await stall(q, id)


async def busy(q: Desk, n: int = 100, **claim: Any) -> tuple[list[str], bool, bool]:
    """What a worker that runs other jobs is given: ids, `last_chance` and `asleep`."""
    settled = await q.exchange(worker="busy", then=q.claiming(n, alone=False, **claim))
    return [lease.id for lease in settled.leases], settled.last_chance, settled.asleep


async def test_a_last_chance_is_left_to_a_worker_that_is_alone(q: Desk) -> None:
    await frail(q)
    await q.put("a", "b")
    for _ in range(2):
        assert await busy(q) == ([], True, False)
    assert await q.states("frail", "a", "b") == ["waiting"] * 3
    settled = await q.exchange(then=q.claiming(100))
    assert [lease.id for lease in settled.leases] == ["frail"]
    assert not settled.last_chance
    assert await busy(q) == (["a", "b"], False, False)


async def test_a_busy_worker_is_given_the_jobs_before_a_last_chance(q: Desk) -> None:
    await frail(q)
    await q.put("h1", "h2", priority=1)
    await q.put("behind")
    ids, _, asleep = await busy(q)
    assert (ids, asleep) == (["h1", "h2"], False)
    assert await busy(q) == ([], True, False)


async def test_outcomes_are_settled_where_a_last_chance_is_left(q: Desk) -> None:
    await q.put("a")
    lease = await q.take()
    await frail(q)
    settled = await q.exchange(complete(lease), then=q.claiming(10, alone=False))
    assert (settled.leases, settled.last_chance, settled.asleep) == ((), True, False)
    assert await q.states("a", "frail") == ["completed", "waiting"]


async def test_a_busy_worker_falls_asleep_when_the_last_chance_is_gone(q: Desk) -> None:
    await frail(q)
    assert await busy(q) == ([], True, False)
    assert await claimed(q) == [("frail", True)]
    assert await busy(q) == ([], False, True)


async def test_a_sleeping_worker_is_woken_for_a_last_chance_that_a_busy_one_leaves(q: Desk) -> None:
    await q.put_one("frail", max_stalls=1)
    await q.claim(worker="dies", lease_ms=SECOND)
    assert (await q.exchange(worker="idle", then=q.claiming(1))).asleep
    nap = asyncio.create_task(q.store.sleep([q.queue], worker="idle", slots=1, timeout_ms=10_000))
    q.clock.advance(2 * SECOND)
    assert await busy(q) == ([], True, False)
    assert await nap


async def test_a_last_chance_in_a_paused_queue_is_not_reported(q: Desk) -> None:
    await frail(q)
    await q.store.pause(q.queue)
    assert await busy(q) == ([], False, True)


async def test_a_last_chance_is_not_reported_while_the_queues_limit_is_reached(q: Desk) -> None:
    await q.store.declare(q.queue, QueueConfig(limits=Limits(limit=1)))
    await frail(q)
    await q.put_one("first", priority=1)
    lease = await q.take()
    assert await busy(q) == ([], False, True)
    await q.settle(complete(lease))
    assert await busy(q) == ([], True, False)


@pytest.mark.parametrize(
    "rate", [Window(limit=1, per_ms=60 * SECOND), Tokens(capacity=1, refill=1 / 60)]
)
async def test_a_last_chance_is_not_reported_while_the_rate_is_used_up(
    q: Desk, rate: RateData
) -> None:
    await frail(q)
    await q.store.declare(q.queue, QueueConfig(limits=Limits(rate=rate)))
    for _ in range(3):
        assert await busy(q) == ([], True, False)  # asking costs nothing
    await q.put_one("first", priority=1)
    await q.settle(complete(await q.take()))
    assert await busy(q) == ([], False, True)
    q.clock.advance(61 * SECOND)
    assert await busy(q) == ([], True, False)


async def test_a_last_chance_is_left_by_a_claim_that_has_jobs_of_other_queues(q: Desk) -> None:
    other = q.beside("other")
    await frail(other)
    await q.put("a")
    queues = (q.queue, other.queue)
    settled = await q.exchange(then=q.claiming(100, queues=queues))
    assert ([lease.id for lease in settled.leases], settled.last_chance) == (["a"], True)


async def test_a_busy_worker_is_given_jobs_of_the_queues_behind_a_last_chance(q: Desk) -> None:
    other, third = q.beside("other"), q.beside("third")
    await frail(q)
    await third.put("c")
    queues = (q.queue, other.queue, third.queue)
    assert await busy(q, queues=queues) == (["c"], True, False)
    assert await busy(q, queues=queues) == ([], True, False)
    settled = await q.exchange(then=q.claiming(100, queues=queues))
    assert [lease.id for lease in settled.leases] == ["frail"]


async def test_a_keyed_last_chance_is_left_to_a_worker_that_is_alone(q: Desk) -> None:
    await frail(q, key="k")
    assert await busy(q) == ([], True, False)
    await q.put_one("next", key="k")
    assert await busy(q) == ([], True, False)
    assert await claimed(q) == [("frail", True)]
    assert await busy(q) == ([], False, True)  # its key is busy


async def test_a_keyed_last_chance_is_not_reported_while_its_key_is_busy(q: Desk) -> None:
    await frail(q, key="k")
    await q.put_one("first", key="k", priority=1)
    await q.put_one("other", key="k2")
    lease = await q.take()
    while lease.id != "first":
        await q.settle(complete(lease))
        lease = await q.take()
    assert (await busy(q))[1] is False


async def test_a_keyed_last_chance_whose_rate_is_used_up_holds_up_no_other_key(q: Desk) -> None:
    await frail(q, key="k")
    rate = Tokens(capacity=1, refill=1 / 60)
    await q.store.declare(q.queue, QueueConfig(mode="keyed", limits=Limits(key_rate=rate)))
    await q.put_one("first", key="k", priority=1)
    first = await q.take()
    assert first.id == "first"
    await q.settle(complete(first))
    await q.put_one("a", key="k2")
    ids, last_chance, _ = await busy(q)
    assert (ids, last_chance) == (["a"], False)
    q.clock.advance(61 * SECOND)
    assert await busy(q) == ([], True, False)
