"""The clock is set back by an hour.

No time span is late by more than its own length, and nothing is early.
"""

from __future__ import annotations

import pytest

from jobq.core.records.commands import Reschedule
from jobq.core.records.jobs import UniqueSpec
from jobq.core.records.queues import Limits, QueueConfig, ScheduleSpec, Tokens, Window
from jobq.core.records.states import State
from jobq.core.rules.clock import FULL_SPEED_MS
from jobq_conformance.kit import (
    HOUR,
    LEASE,
    MINUTE,
    SECOND,
    Desk,
    block,
    complete,
    hold,
    ref,
    retry,
    snooze,
)

STEP = SECOND


async def set_back(q: Desk, ms: int = HOUR) -> None:
    q.clock.advance(-ms)
    await q.claim(0, worker="looks")  # as workers do all the time: the queue learns of it


async def next_after(q: Desk, ms: int) -> str:
    """The job that can be claimed within `ms`, and not before the last step of it."""
    q.clock.advance(ms - STEP)
    assert await q.claim_ids(1, worker="w9") == []
    q.clock.advance(STEP)
    (id,) = await q.claim_ids(1, worker="w9")
    return id


async def test_a_lost_lease_is_found_in_time(q: Desk) -> None:
    await q.put("a")
    await q.take()
    await set_back(q)
    assert await next_after(q, LEASE) == "a"


async def test_a_lost_lease_is_late_by_at_most_one_lease_if_no_call_came_meanwhile(
    q: Desk,
) -> None:
    await q.put("a")
    await q.take()
    q.clock.advance(-HOUR + LEASE)
    assert await q.claim_ids(worker="w2") == []
    q.clock.advance(LEASE)
    assert await q.claim_ids(worker="w2") == ["a"]


async def test_a_lease_that_is_renewed_is_not_lost(q: Desk) -> None:
    await q.put("a")
    lease = await q.take()
    await set_back(q)
    for _ in range(5):
        q.clock.advance(LEASE - STEP)
        assert await q.store.extend([ref(lease)], lease_ms=LEASE) == ["held"]
        await q.tick()
    await q.settle(complete(lease))


@pytest.mark.parametrize("way", ["put", "retry", "snooze", "reschedule", "unblocked"])
async def test_a_delay_is_not_late(q: Desk, way: str) -> None:
    if way == "put":
        await q.put_one("a", delay_ms=20 * SECOND)
    elif way == "unblocked":
        await q.put("child")
        await q.put_one("a", delay_ms=20 * SECOND, after=(q.edge("child"),))
        await q.settle(complete(await q.take()))
    else:
        await q.put("a")
        if way == "reschedule":
            await q.alter(Reschedule(job=q.key("a"), delay_ms=20 * SECOND))
        else:
            await q.settle((retry if way == "retry" else snooze)(await q.take(), 20 * SECOND))
    await set_back(q)
    assert await next_after(q, 20 * SECOND) == "a"


async def test_a_wait_for_a_signal_times_out(q: Desk) -> None:
    await q.put("a")
    await q.settle(block(await q.take(), signal="go", timeout_ms=20 * SECOND))
    await set_back(q)
    assert await next_after(q, 20 * SECOND) == "a"


async def test_a_ttl_ends(q: Desk) -> None:
    await q.put_one("a", ttl_ms=20 * SECOND)
    await set_back(q)
    q.clock.advance(20 * SECOND)
    await q.tick()
    assert await q.state("a") is State.FAILED


@pytest.mark.parametrize(
    "rate",
    [Window(limit=1, per_ms=10 * SECOND), Tokens(capacity=1, refill=0.1)],
    ids=["window", "bucket"],
)
@pytest.mark.parametrize("of", ["queue", "key"])
async def test_a_rate_opens_again(q: Desk, rate: Window | Tokens, of: str) -> None:
    limits = Limits(rate=rate) if of == "queue" else Limits(key_rate=rate, key_limit=9)
    await q.store.declare(q.queue, QueueConfig(limits=limits))
    await q.put("a", "b", **({} if of == "queue" else {"key": "k"}))
    assert await q.claim_ids() == ["a"]
    await set_back(q)
    assert await next_after(q, 10 * SECOND) == "b"


@pytest.mark.parametrize("key", [None, "k"])
async def test_a_hold_ends(q: Desk, key: str | None) -> None:
    await q.put("a", key=key)
    await q.settle(hold(await q.take(), 10 * SECOND))
    await set_back(q)
    assert await next_after(q, 10 * SECOND) == "a"


async def test_a_throttle_ends(q: Desk) -> None:
    lock = UniqueSpec(lock="L", mode="throttle", ttl_ms=10 * SECOND)
    await q.run("a", unique=lock)
    await set_back(q)
    q.clock.advance(9 * SECOND)
    assert (await q.put_one("b", unique=lock)).duplicate
    q.clock.advance(SECOND)
    assert not (await q.put_one("b", unique=lock)).duplicate


async def test_an_office_is_given_up_in_time(q: Desk) -> None:
    assert await q.store.lead("upkeep", who="w1", ttl_ms=10 * SECOND)
    q.clock.advance(-HOUR)
    await q.store.lead("upkeep", who="w1", ttl_ms=10 * SECOND)
    q.clock.advance(10 * SECOND)
    assert await q.store.lead("upkeep", who="w2", ttl_ms=10 * SECOND)


async def test_what_takes_longer_is_late_by_its_own_length_at_most(q: Desk) -> None:
    await q.put_one("a", delay_ms=30 * MINUTE)
    await set_back(q)
    assert await next_after(q, FULL_SPEED_MS + 2 * (30 * MINUTE - FULL_SPEED_MS)) == "a"


async def test_the_stores_time_never_goes_back_and_meets_the_clock_again(q: Desk) -> None:
    await q.put("a")
    before = q.clock.now_ms
    await set_back(q)
    await q.put("b")
    assert (await q.get("b")).created_ms == before
    q.clock.advance(MINUTE)
    await q.put("c")
    assert (await q.get("c")).created_ms == before + MINUTE
    q.clock.advance(3 * HOUR)
    await q.put("d")
    assert (await q.get("d")).created_ms == q.clock.now_ms


async def test_a_clock_set_back_again_and_again_makes_nothing_late(q: Desk) -> None:
    await q.put_one("a", delay_ms=20 * SECOND)
    for back in (HOUR, HOUR, 2 * SECOND):
        await set_back(q, back)
        q.clock.advance(5 * SECOND)
        await q.claim(0, worker="looks")
    assert await next_after(q, 5 * SECOND) == "a"


async def test_the_stores_time_stands_still_while_a_small_correction_is_caught_up(q: Desk) -> None:
    await q.put_one("a", delay_ms=20 * SECOND)
    q.clock.advance(-500)
    await q.put("b")
    assert (await q.get("b")).created_ms == q.clock.now_ms + 500
    assert await q.claim_ids() == ["b"]
    q.clock.advance(20 * SECOND)
    assert await q.claim_ids(worker="w2") == []
    q.clock.advance(500)
    assert await q.claim_ids(worker="w2") == ["a"]


# ── times of day are the clock's ──────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("put", ["before", "after"])
async def test_a_job_for_a_time_of_day_is_not_early(q: Desk, put: str) -> None:
    noon = q.clock.now_ms + 10 * MINUTE
    if put == "before":
        await q.put_one("a", at_ms=noon)
    await set_back(q)
    if put == "after":
        await q.put_one("a", at_ms=noon)
    for _ in range(14):
        assert await q.claim_ids(worker="w2") == []
        q.clock.advance(5 * MINUTE)
    assert q.clock.now_ms == noon
    q.clock.advance(HOUR)
    assert await q.claim_ids(worker="w2") == ["a"]


async def test_a_schedule_is_not_early(q: Desk) -> None:
    at = q.clock.now_ms + 5 * MINUTE
    await q.put("a")
    await q.store.put_schedule(
        ScheduleSpec(queue=q.queue, id="s", template=q.spec("s"), every_ms=HOUR), next_ms=at
    )
    await set_back(q)
    q.clock.advance(6 * MINUTE)
    assert await q.store.list_schedules(q.queue, due=True) == []
    q.clock.advance(HOUR - MINUTE)
    assert [each.spec.id for each in await q.store.list_schedules(q.queue, due=True)] == ["s"]
