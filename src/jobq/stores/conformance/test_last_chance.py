"""A job whose next stall would fail it is claimed alone; and whose limit that is: the call's, the task's, or 3."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from jobq.core.commands import Cancel, Rerun
from jobq.core.queues import Limits, QueueConfig, RateData, Tokens, Window
from jobq.core.records import Lease
from jobq.core.states import State
from jobq.stores.conformance.kit import LEASE, SECOND, Desk, complete, release, retry
from jobq.stores.conformance.roles import needs

pytestmark = needs("leases", "upkeep", "limits")


async def stall(q: Desk, *ids: str, times: int = 1) -> None:
    """Let a worker die `times` times with these jobs, which are the next to be claimed."""
    for _ in range(times):
        taken: list[str] = []
        while len(taken) < len(ids):
            taken += [
                lease.id
                for lease in await q.claim(len(ids) - len(taken), worker="dies", lease_ms=SECOND)
            ]
        assert sorted(taken) == sorted(ids)
        q.clock.advance(2 * SECOND)
        await q.tick()


async def claimed(q: Desk, n: int = 100) -> list[tuple[str, bool]]:
    return [(lease.id, lease.last_chance) for lease in await q.claim(n)]


async def settle_next(q: Desk, n: int = 100) -> list[str]:
    """Claim and complete; the ids that came together."""
    leases = await q.claim(n)
    await q.settle(*(complete(lease) for lease in leases))
    return [lease.id for lease in leases]


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


async def test_a_last_chance_handed_back_is_claimed_alone_again(q: Desk) -> None:
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


async def test_a_cancelled_last_chance_holds_up_nobody(q: Desk) -> None:
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
    assert await q.line() == ["d"]


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


# ── a caller that is not alone ────────────────────────────────────────────────────────────────────


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


# ── whose limit ───────────────────────────────────────────────────────────────────────────────────


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
