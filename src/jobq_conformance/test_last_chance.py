"""A job whose next stall would fail it is claimed alone."""

from __future__ import annotations

import asyncio

import pytest

from jobq.core.records.commands import Cancel, Rerun
from jobq.core.records.jobs import Lease
from jobq.core.records.queues import Limits, QueueConfig, Tokens
from jobq.core.records.states import State
from jobq_conformance.kit import SECOND, Desk, complete, release, retry
from jobq_conformance.roles import needs
from jobq_conformance.stalling import claimed, settle_next, stall

pytestmark = needs("leases", "upkeep", "limits")


# ── alone ─────────────────────────────────────────────────────────────────────────────────────────


async def test_a_job_on_its_last_chance_at_the_head_is_claimed_alone(q: Desk) -> None:
    await q.put_one("frail", max_stalls=1)
    await stall(q, "frail")
    await q.put("a", "b")
    assert await claimed(q) == [("frail", True)]
    assert await claimed(q) == [("a", False), ("b", False)]


@pytest.mark.parametrize("many", [3, 20])
async def test_a_claim_ends_before_a_job_on_its_last_chance(q: Desk, many: int) -> None:
    await q.put_one("frail", max_stalls=1)
    await stall(q, "frail")
    ahead, behind = [f"h{n:02}" for n in range(many)], [f"l{n:02}" for n in range(many)]
    await q.put(*ahead, priority=1)
    await q.put(*behind)
    assert await claimed(q) == [(id, False) for id in ahead]
    assert await claimed(q) == [("frail", True)]
    assert await claimed(q) == [(id, False) for id in behind]


async def test_several_last_chances_come_one_by_one_in_their_order(q: Desk) -> None:
    await q.put("a", "b", "c", max_stalls=1)
    await stall(q, "a", "b", "c")
    await q.put("d")
    assert [await settle_next(q) for _ in range(5)] == [["a"], ["b"], ["c"], ["d"], []]


async def test_a_job_that_can_stall_again_is_claimed_with_others(q: Desk) -> None:
    await q.put("a", "b")
    await stall(q, "a", "b", times=2)
    await q.put("c")
    assert await claimed(q) == [("a", False), ("b", False), ("c", False)]


async def test_by_default_the_fourth_run_is_the_last_chance(q: Desk) -> None:
    await q.put("a", "b")
    await stall(q, "a", "b", times=3)
    assert await claimed(q) == [("a", True)]
    assert await claimed(q) == [("b", True)]


async def test_no_stall_allowed_is_no_last_chance(q: Desk) -> None:
    await q.put("a", "b", "c", max_stalls=0)
    assert await claimed(q) == [("a", False), ("b", False), ("c", False)]


async def test_a_limit_lowered_to_zero_is_no_last_chance_either(q: Desk) -> None:
    await q.put("a", "b")
    await stall(q, "a", "b")
    await q.store.declare(q.queue, QueueConfig(max_stalls={"task": 0}))
    assert await claimed(q) == [("a", False), ("b", False)]


async def test_a_last_chance_that_is_lost_fails_alone(q: Desk) -> None:
    await q.put("a", "b", max_stalls=1)
    await stall(q, "a", "b")
    await q.claim(100, worker="dies", lease_ms=SECOND)
    q.clock.advance(2 * SECOND)
    assert await claimed(q) == [("b", True)]
    record = await q.get("a")
    assert (record.state, record.stalls, record.failure and record.failure.reason) == (
        State.FAILED,
        2,
        "stalled",
    )


async def test_a_released_last_chance_is_claimed_alone_again(q: Desk) -> None:
    await q.put_one("frail", max_stalls=1)
    await stall(q, "frail")
    await q.put("a")
    (lease,) = await q.claim(100)
    await q.settle(release(lease))
    assert await claimed(q) == [("frail", True)]


async def test_a_retry_of_a_job_on_its_last_chance_is_claimed_alone(q: Desk) -> None:
    await q.put_one("frail", max_stalls=1)
    await stall(q, "frail")
    lease = await q.take()
    await q.settle(retry(lease, 5 * SECOND))
    await q.put("a", "b")
    q.clock.advance(6 * SECOND)
    assert await claimed(q) == [("a", False), ("b", False)]
    assert await claimed(q) == [("frail", True)]


async def test_rerun_gives_a_job_all_its_chances_again(q: Desk) -> None:
    await q.put_one("frail", max_stalls=1)
    await stall(q, "frail", times=2)
    assert await q.state("frail") is State.FAILED
    await q.alter(Rerun(job=q.key("frail")))
    await q.put("a")
    assert await claimed(q) == [("frail", False), ("a", False)]


async def test_a_cancelled_last_chance_holds_up_no_other_job(q: Desk) -> None:
    await q.put_one("frail", max_stalls=1)
    await stall(q, "frail")
    await q.put("a", "b")
    await q.alter(Cancel(job=q.key("frail")))
    assert await claimed(q) == [("a", False), ("b", False)]


async def test_a_repeated_exchange_says_last_chance_again(q: Desk) -> None:
    await q.put_one("frail", max_stalls=1)
    await stall(q, "frail")
    await q.put("a")
    first = await q.exchange(call="once", then=q.claiming(10))
    again = await q.exchange(call="once", then=q.claiming(10))
    assert [(lease.id, lease.last_chance) for lease in first.leases] == [("frail", True)]
    assert [(lease.id, lease.token, lease.last_chance) for lease in again.leases] == [
        ("frail", first.leases[0].token, True)
    ]


async def test_a_bucket_pays_only_for_what_is_claimed(q: Desk) -> None:
    await q.store.declare(
        q.queue, QueueConfig(limits=Limits(rate=Tokens(capacity=4, refill=0.001)))
    )
    await q.put_one("frail", max_stalls=1)
    await stall(q, "frail")
    await q.put("a", "b", "c")
    assert [await settle_next(q) for _ in range(3)] == [["frail"], ["a", "b"], []]


async def test_a_worker_that_takes_a_last_chance_leaves_the_rest_to_one_that_sleeps(
    q: Desk,
) -> None:
    await q.put_one("frail", max_stalls=1)
    await q.claim(worker="dies", lease_ms=SECOND)
    for worker in ("w1", "w2"):
        assert (await q.exchange(worker=worker, then=q.claiming(100))).asleep
    naps = {
        worker: asyncio.create_task(
            q.store.sleep([q.queue], worker=worker, slots=100, timeout_ms=10_000)
        )
        for worker in ("w1", "w2")
    }
    await q.put("a", "b")
    await asyncio.wait(naps.values(), return_when=asyncio.FIRST_COMPLETED)
    q.clock.advance(2 * SECOND)
    awake = next(worker for worker, nap in naps.items() if nap.done())
    settled = await q.exchange(worker=awake, then=q.claiming(100))
    assert [(lease.id, lease.last_chance) for lease in settled.leases] == [("frail", True)]
    assert [await nap for nap in naps.values()] == [True, True]


async def test_a_worker_with_a_last_chance_does_not_count_as_asleep(q: Desk) -> None:
    await q.put_one("frail", max_stalls=1)
    await stall(q, "frail")
    assert [lease.id for lease in await q.claim(100, worker="busy")] == ["frail"]
    assert (await q.exchange(worker="idle", then=q.claiming(1))).asleep
    await q.put("a")
    assert await q.store.sleep([q.queue], worker="idle", slots=1, timeout_ms=2000)


# ── keyed ─────────────────────────────────────────────────────────────────────────────────────────


async def test_a_keyed_claim_has_a_last_chance_alone_or_not_at_all(q: Desk) -> None:
    keys = [f"k{n}" for n in range(6)]
    for key in keys:
        await q.put_one(f"{key}-0", key=key, max_stalls=1 if key in ("k2", "k3") else 9)
    await stall(q, *(f"{key}-0" for key in keys))
    for key in keys:
        await q.put_one(f"{key}-1", key=key)
    together: list[list[Lease]] = []
    while leases := await q.claim(100):
        together.append(leases)
        await q.settle(*(complete(lease) for lease in leases))
    assert [len(leases) for leases in together if any(lease.last_chance for lease in leases)] == [
        1,
        1,
    ]
    assert await q.counts() == {"completed": 12}
    for key in keys:
        order = [lease.id for leases in together for lease in leases if lease.key == key]
        assert order == [f"{key}-0", f"{key}-1"]


async def test_a_keyed_last_chance_that_had_to_wait_is_the_next_to_be_claimed(q: Desk) -> None:
    await q.put_one("frail", key="k", max_stalls=1)
    await q.claim(worker="dies", lease_ms=SECOND)
    for n in range(40):
        await q.put_one(f"j{n}", key=f"k{n % 10}")
    q.clock.advance(2 * SECOND)
    await q.tick()
    cut = False
    for _ in range(6):
        together = await settle_next(q, 8)
        if together == ["frail"]:
            return
        assert "frail" not in together
        assert not cut, "a claim had ended before it, and yet other keys went first again"
        cut = len(together) < 8
    pytest.fail("it was never claimed")


async def test_a_key_with_room_for_two_does_not_start_its_next_job_beside_a_last_chance(
    q: Desk,
) -> None:
    await q.store.declare(q.queue, QueueConfig(mode="keyed", limits=Limits(key_limit=2)))
    await q.put_one("frail", key="k", max_stalls=1)
    await stall(q, "frail")
    await q.put_one("next", key="k")
    assert await claimed(q) == [("frail", True)]
    assert await claimed(q) == [("next", False)]


# ── several queues ────────────────────────────────────────────────────────────────────────────────


async def test_a_last_chance_is_alone_among_all_queues_of_a_claim(q: Desk) -> None:
    other, third = q.beside("other"), q.beside("third")
    await other.put_one("frail", max_stalls=1)
    await stall(other, "frail")
    await q.put("a", "b")
    await third.put("c")
    queues = (q.queue, other.queue, third.queue)
    first = await q.exchange(then=q.claiming(100, queues=queues))
    assert {lease.id for lease in first.leases} == {"a", "b", "c"}
    await q.put("d")
    second = await q.exchange(then=q.claiming(100, queues=(*queues[1:], queues[0])))
    assert [(lease.id, lease.last_chance) for lease in second.leases] == [("frail", True)]
    assert await q.claim_ids() == ["d"]


async def test_outcomes_of_other_queues_are_settled_beside_a_last_chance(q: Desk) -> None:
    other = q.beside("other")
    await other.put_one("x")
    lease = await other.take()
    await q.put_one("frail", max_stalls=1)
    await stall(q, "frail")
    await other.put("y")
    settled = await q.exchange(complete(lease), then=q.claiming(10, queues=(q.queue, other.queue)))
    assert [each.id for each in settled.leases] == ["frail"]
    assert await other.states("x", "y") == ["completed", "waiting"]
