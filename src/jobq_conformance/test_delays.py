"""Delays: jobs that are due later and are promoted when they are due."""

from __future__ import annotations

from jobq.core.records.commands import Promote
from jobq.core.records.states import State
from jobq_conformance.kit import DAY, HOUR, SECOND, Desk, complete, retry, snooze
from jobq_conformance.roles import needs

pytestmark = needs("delays")


async def test_a_delayed_job_waits_for_its_time(q: Desk) -> None:
    result = await q.put_one("a", delay_ms=5 * SECOND)
    assert result.state is State.DELAYED
    assert (await q.get("a")).due_ms == q.clock.now_ms + 5 * SECOND
    q.clock.advance(5 * SECOND - 1)
    assert await q.claim() == []
    q.clock.advance(1)
    assert await q.claim_ids() == ["a"]
    assert await q.kinds("a") == ["accepted", "promoted", "started"]


async def test_a_job_may_name_the_time_itself(q: Desk) -> None:
    await q.put_one("a", at_ms=q.clock.now_ms + HOUR)
    assert await q.state("a") is State.DELAYED
    q.clock.advance(HOUR)
    assert await q.claim_ids() == ["a"]


async def test_a_time_in_the_past_is_now(q: Desk) -> None:
    result = await q.put_one("a", at_ms=q.clock.now_ms - DAY)
    assert result.state is State.WAITING
    assert await q.claim_ids() == ["a"]


async def test_the_answer_says_when_the_next_one_is_due(q: Desk) -> None:
    await q.put_one("b", delay_ms=9 * SECOND)
    await q.put_one("a", delay_ms=5 * SECOND)
    assert (await q.exchange(then=q.claiming())).next_due_ms == 5 * SECOND
    q.clock.advance(2 * SECOND)
    assert (await q.exchange(then=q.claiming())).next_due_ms == 3 * SECOND
    assert (await q.store.stats(q.queue)).next_due_ms == 3 * SECOND


async def test_the_next_due_of_several_queues_is_the_soonest(q: Desk) -> None:
    beside = q.beside("other")
    await q.put_one("b", delay_ms=9 * SECOND)
    await beside.put_one("a", delay_ms=4 * SECOND)
    assert (
        await q.exchange(then=q.claiming(queues=(q.queue, beside.queue)))
    ).next_due_ms == 4 * SECOND


async def test_jobs_due_together_come_by_their_times(q: Desk) -> None:
    for id, delay in [("c", 3), ("a", 1), ("d", 3), ("b", 2)]:
        await q.put_one(id, delay_ms=delay * SECOND)
    q.clock.advance(10 * SECOND)
    assert await q.claim_ids() == ["a", "b", "c", "d"]


async def test_a_promoted_job_goes_behind_jobs_that_waited_before_it_was_due(q: Desk) -> None:
    await q.put_one("late", delay_ms=SECOND)
    await q.put("a", "b")
    q.clock.advance(SECOND)
    assert await q.claim_ids() == ["a", "b", "late"]


async def test_a_promoted_job_goes_before_jobs_that_came_after(q: Desk) -> None:
    await q.put_one("late", delay_ms=SECOND)
    q.clock.advance(SECOND)
    await q.tick()
    await q.put("a")
    assert await q.claim_ids() == ["late", "a"]


async def test_a_promoted_job_has_its_priority(q: Desk) -> None:
    await q.put("a")
    await q.put_one("late", delay_ms=SECOND, priority=3)
    q.clock.advance(SECOND)
    assert await q.claim_ids() == ["late", "a"]


async def test_a_delayed_lifo_job_goes_to_the_front_when_due(q: Desk) -> None:
    await q.put_one("late", delay_ms=SECOND, lifo=True)
    await q.put("a")
    q.clock.advance(SECOND)
    assert await q.claim_ids() == ["late", "a"]


async def test_tick_promotes_in_queues_without_workers(q: Desk) -> None:
    beside = q.beside("other")
    await q.put_one("a", delay_ms=SECOND)
    await beside.put_one("b", delay_ms=SECOND)
    q.clock.advance(SECOND)
    assert await q.tick() >= 2
    assert await q.states("a") == await beside.states("b") == ["waiting"]


async def test_tick_is_bounded_and_says_when_there_is_more(q: Desk) -> None:
    await q.put(*(f"j{n}" for n in range(25)), delay_ms=SECOND)
    q.clock.advance(SECOND)
    assert await q.store.tick(limit=10) == 10
    counts = await q.counts()
    assert counts["delayed"] >= 15
    steps = [await q.store.tick(limit=10) for _ in range(4)]
    assert steps[-1] < 10
    assert await q.counts() == {"waiting": 25}


async def test_a_tick_of_no_steps_changes_no_job(q: Desk) -> None:
    await q.put_one("a", delay_ms=SECOND)
    q.clock.advance(SECOND)
    assert await q.store.tick(limit=0) == 0
    assert await q.counts() == {"delayed": 1}


async def test_a_claim_finds_every_due_job_however_many_there_are(q: Desk) -> None:
    ids = [f"j{n:04}" for n in range(1200)]
    await q.put(*ids, delay_ms=SECOND)
    q.clock.advance(SECOND)
    seen: list[str] = []
    while batch := await q.claim(100):
        seen += [lease.id for lease in batch]
        await q.settle(*(complete(lease) for lease in batch))
    assert seen == ids


async def test_a_retry_waits_for_its_backoff(q: Desk) -> None:
    await q.put("a")
    await q.settle(retry(await q.take(), delay_ms=7 * SECOND))
    assert (await q.get("a")).due_ms == q.clock.now_ms + 7 * SECOND
    assert (await q.exchange(then=q.claiming())).next_due_ms == 7 * SECOND
    q.clock.advance(7 * SECOND)
    lease = await q.take()
    assert (lease.attempt, lease.failures) == (2, 1)


async def test_a_snoozed_job_wakes_with_what_it_saved(q: Desk) -> None:
    await q.put("a")
    await q.settle(snooze(await q.take(), delay_ms=SECOND, saved=b'{"step":2}'))
    assert await q.state("a") is State.DELAYED
    assert (await q.get("a")).saved == b'{"step":2}'
    q.clock.advance(SECOND)
    lease = await q.take()
    assert (lease.saved, lease.attempt, lease.failures, lease.stalls) == (b'{"step":2}', 2, 0, 0)


async def test_promoting_by_hand_leaves_no_second_promotion_behind(q: Desk) -> None:
    await q.put_one("a", delay_ms=SECOND)
    assert await q.alter(Promote(job=q.key("a")))
    lease = await q.take()
    q.clock.advance(2 * SECOND)
    assert await q.claim() == []
    await q.settle(complete(lease))
    assert await q.kinds("a") == ["accepted", "promoted", "started", "completed"]


async def test_a_delay_is_counted_from_the_stores_clock(q_twice: tuple[Desk, Desk]) -> None:
    first, second = q_twice
    await first.put_one("a", delay_ms=SECOND)
    assert await second.claim() == []
    first.clock.advance(SECOND)
    assert await second.claim_ids() == ["a"]
