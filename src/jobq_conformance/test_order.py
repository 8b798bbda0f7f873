"""The order of claims: which job is next."""

from __future__ import annotations

from jobq.core.records.commands import Cancel, Reprioritise
from jobq.core.records.states import State
from jobq.core.values.checks import MAX_PRIORITY
from jobq_conformance.kit import LEASE, SECOND, Desk, complete, release, retry
from jobq_conformance.roles import needs

pytestmark = needs("priorities", "delays")


async def test_jobs_come_in_the_order_they_were_put(q: Desk) -> None:
    await q.put("c", "a")
    await q.put("b")
    assert await q.claim_ids() == ["c", "a", "b"]


async def test_a_claim_takes_no_more_than_its_limit(q: Desk) -> None:
    await q.put("a", "b", "c")
    assert await q.claim_ids(2) == ["a", "b"]
    assert await q.counts() == {"active": 2, "waiting": 1}
    assert await q.claim_ids(2) == ["c"]


async def test_an_empty_queue_gives_nothing(q: Desk) -> None:
    settled = await q.exchange(then=q.claiming(10))
    assert (settled.leases, settled.stale, settled.next_due_ms) == ((), (), None)


async def test_a_claimed_job_is_active_under_a_token_of_its_own(q: Desk) -> None:
    await q.put("a", "b")
    a, b = await q.claim(2, worker="bee")
    assert a.token != b.token
    record = await q.get("a")
    assert (record.state, record.attempt, record.worker, record.started_ms) == (
        State.ACTIVE,
        1,
        "bee",
        q.clock.now_ms,
    )


async def test_two_workers_never_get_the_same_job(q_twice: tuple[Desk, Desk]) -> None:
    first, second = q_twice
    await first.put(*(f"j{n}" for n in range(10)))
    taken = [
        await desk.claim_ids(1, worker=name)
        for _ in range(5)
        for desk, name in ((first, "w1"), (second, "w2"))
    ]
    assert [id for (id,) in taken] == [f"j{n}" for n in range(10)]


async def test_higher_priority_runs_first_and_fifo_inside_one(q: Desk) -> None:
    for id, priority in [("a", 0), ("b", 5), ("c", 1), ("d", 5), ("e", 0), ("f", 1)]:
        await q.put_one(id, priority=priority)
    assert await q.claim_ids() == ["b", "d", "c", "f", "a", "e"]


async def test_the_top_of_the_priority_range_is_exact(q: Desk) -> None:
    for n, priority in enumerate(
        [MAX_PRIORITY - 1, MAX_PRIORITY, MAX_PRIORITY - 1, MAX_PRIORITY, MAX_PRIORITY - 2]
    ):
        await q.put_one(f"j{n}", priority=priority)
    assert await q.claim_ids() == ["j1", "j3", "j0", "j2", "j4"]


async def test_priority_is_kept_on_the_record(q: Desk) -> None:
    await q.put_one("a", priority=MAX_PRIORITY)
    assert (await q.get("a")).priority == MAX_PRIORITY


async def test_a_later_job_of_higher_priority_overtakes(q: Desk) -> None:
    await q.put("a", "b")
    assert await q.claim_ids(1) == ["a"]
    await q.put_one("c", priority=1)
    assert await q.claim_ids(1) == ["c"]
    assert await q.claim_ids(1) == ["b"]


async def test_lifo_goes_to_the_front_of_its_priority(q: Desk) -> None:
    await q.put("a", "b")
    await q.put_one("c", lifo=True)
    await q.put_one("d", lifo=True)
    await q.put_one("e", priority=1)
    await q.put_one("f", priority=1, lifo=True)
    assert await q.claim_ids() == ["f", "e", "d", "c", "a", "b"]


async def test_released_jobs_return_to_the_front_in_their_original_order(q: Desk) -> None:
    await q.put("a", "b", "c", "d")
    a, b, c = await q.claim(3)
    await q.settle(release(c), release(a), release(b))
    assert await q.claim_ids() == ["a", "b", "c", "d"]


async def test_the_original_order_holds_when_jobs_are_released_one_by_one(q: Desk) -> None:
    await q.put("a", "b", "c", "d")
    a, b, c = await q.claim(3)
    for lease in (b, a, c):
        await q.settle(release(lease))
    assert await q.claim_ids() == ["a", "b", "c", "d"]


async def test_released_and_stalled_jobs_share_the_original_order(q: Desk) -> None:
    await q.put("a", "b", "c", "d")
    await q.take("gone", lease_ms=SECOND)
    b = await q.take("stops")
    await q.take("gone", lease_ms=SECOND)
    await q.settle(release(b), worker="stops")
    q.clock.advance(2 * SECOND)
    assert await q.claim_ids() == ["a", "b", "c", "d"]


async def test_a_released_job_does_not_overtake_a_higher_priority(q: Desk) -> None:
    await q.put("low")
    low = await q.take()
    await q.put_one("high", priority=1)
    await q.settle(release(low))
    await q.put("next")
    assert await q.claim_ids() == ["high", "low", "next"]


async def test_a_retry_goes_to_the_back_when_due(q: Desk) -> None:
    await q.put("a", "b")
    a = await q.take()
    await q.settle(retry(a, delay_ms=SECOND))
    await q.put("c")
    q.clock.advance(SECOND)
    assert await q.claim_ids() == ["b", "c", "a"]


async def test_a_retry_without_backoff_goes_to_the_back_at_once(q: Desk) -> None:
    await q.put("a", "b")
    a = await q.take()
    await q.settle(retry(a, delay_ms=0))
    assert await q.state("a") is State.WAITING
    assert await q.claim_ids() == ["b", "a"]


async def test_a_retry_keeps_its_priority(q: Desk) -> None:
    await q.put_one("a", priority=1)
    await q.settle(retry(await q.take()))
    await q.put("b")
    assert await q.claim_ids() == ["a", "b"]


async def test_a_claim_takes_from_its_queues_in_the_order_given(q: Desk) -> None:
    beside = q.beside("other")
    await q.put("a", "b")
    await beside.put("x", "y")
    settled = await q.exchange(then=q.claiming(3, queues=(beside.queue, q.queue)))
    assert [(lease.queue, lease.id) for lease in settled.leases] == [
        (beside.queue, "x"),
        (beside.queue, "y"),
        (q.queue, "a"),
    ]
    settled = await q.exchange(then=q.claiming(3, queues=(beside.queue, q.queue)))
    assert [lease.id for lease in settled.leases] == ["b"]


async def test_settling_and_claiming_is_one_exchange(q: Desk) -> None:
    await q.put("a", "b")
    settled = await q.exchange(complete(await q.take()), then=q.claiming(1))
    assert [lease.id for lease in settled.leases] == ["b"]
    assert await q.states("a", "b") == ["completed", "active"]


async def test_a_released_job_can_be_claimed_in_the_same_exchange(q: Desk) -> None:
    await q.put("a", "b")
    settled = await q.exchange(release(await q.take()), then=q.claiming(2))
    assert [(lease.id, lease.attempt) for lease in settled.leases] == [("a", 2), ("b", 1)]


async def test_a_job_cancelled_in_the_middle_leaves_no_hole(q: Desk) -> None:
    await q.put("a", "b", "c")
    await q.alter(Cancel(job=q.key("b")))
    assert await q.claim_ids(2) == ["a", "c"]


async def test_many_cancelled_jobs_in_front_do_not_hide_the_one_behind(q: Desk) -> None:
    ids = [f"j{n}" for n in range(600)]
    await q.put(*ids)
    await q.store.alter([Cancel(job=q.key(id)) for id in ids[:-1]])
    assert await q.claim_ids(10) == [ids[-1]]


async def test_a_new_priority_puts_a_job_behind_those_that_have_it(q: Desk) -> None:
    await q.put("a", "b", "c")
    await q.put_one("x", priority=5)
    assert await q.alter(Reprioritise(job=q.key("c"), priority=5))
    assert await q.claim_ids() == ["x", "c", "a", "b"]


async def test_stats_say_how_long_the_next_job_has_waited(q: Desk) -> None:
    assert (await q.store.stats(q.queue)).oldest_waiting_ms is None
    await q.put("a")
    q.clock.advance(LEASE)
    await q.put("b")
    stats = await q.store.stats(q.queue)
    assert stats.oldest_waiting_ms == LEASE
    assert {s.value: n for s, n in stats.counts.items() if n} == {"waiting": 2}
