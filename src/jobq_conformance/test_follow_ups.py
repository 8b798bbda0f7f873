"""The follow-up of a unique job runs when the job before it ends, whatever happened to the lock."""

from __future__ import annotations

import pytest

from jobq.core.records.commands import Cancel
from jobq.core.records.jobs import UniqueSpec
from jobq.core.records.states import State
from jobq_conformance.kit import SECOND, Desk, complete

KEEP_LAST = UniqueSpec(lock="L", mode="keep_last")
THROTTLE = UniqueSpec(lock="L", mode="throttle", ttl_ms=60 * SECOND)
OTHERS = [UniqueSpec(lock="L"), THROTTLE, UniqueSpec(lock="L", mode="debounce")]


@pytest.mark.parametrize("unique", OTHERS, ids=lambda unique: unique.mode)
async def test_a_follow_up_of_a_job_with_another_mode_goes_on(q: Desk, unique: UniqueSpec) -> None:
    await q.put_one("a", unique=unique)
    running = await q.take()
    assert (await q.put_one("b", unique=KEEP_LAST)).state is State.BLOCKED
    settled = await q.exchange(complete(running), then=q.claiming())
    assert [lease.id for lease in settled.leases] == ["b"]


async def test_a_follow_up_takes_nothing_from_a_throttle(q: Desk) -> None:
    await q.put_one("a", unique=THROTTLE)
    running = await q.take()
    await q.put_one("b", unique=KEEP_LAST)
    await q.settle(complete(running))
    await q.settle(complete(await q.take()))
    result = await q.put_one("c", unique=THROTTLE)
    assert (result.id, result.duplicate) == ("a", True)


@pytest.mark.parametrize("swept", [False, True])
async def test_a_follow_up_goes_on_though_the_lock_outlived_its_ttl(q: Desk, swept: bool) -> None:
    timed = UniqueSpec(lock="L", mode="keep_last", ttl_ms=5 * SECOND)
    await q.put_one("a", unique=timed)
    running = await q.take()
    await q.put_one("b", unique=timed)
    q.clock.advance(6 * SECOND)
    if swept:
        await q.tick()
    await q.settle(complete(running))
    assert await q.claim_ids() == ["b"]


async def test_a_follow_up_waits_for_the_job_that_took_the_lock_over(q: Desk) -> None:
    timed = UniqueSpec(lock="L", mode="keep_last", ttl_ms=5 * SECOND)
    await q.put_one("a", unique=timed)
    first = await q.take()
    await q.put_one("b", unique=timed)
    q.clock.advance(6 * SECOND)
    await q.put_one("c", unique=timed)
    await q.settle(complete(first))
    assert await q.states("b", "c") == ["blocked", "waiting"]
    await q.settle(complete(await q.take()))
    assert await q.claim_ids() == ["b"]


async def test_a_cancelled_follow_up_leaves_the_lock_with_its_holder(q: Desk) -> None:
    await q.put_one("a", unique=KEEP_LAST)
    await q.take()
    await q.put_one("b", unique=KEEP_LAST)
    await q.alter(Cancel(job=q.key("b")))
    assert (await q.put_one("c", unique=UniqueSpec(lock="L"))).id == "a"
