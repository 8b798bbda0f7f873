"""Rate limits that change while jobs wait, and costs that no longer fit."""

from __future__ import annotations

from jobq.core.records.queues import Limits, Tokens, Window
from jobq_conformance.kit import SECOND, Desk, complete, hold
from jobq_conformance.roles import needs

pytestmark = needs("limits")


async def change(q: Desk, **limits: object) -> None:
    await q.store.set_limits(q.queue, Limits(**limits))  # type: ignore[arg-type]


async def test_a_job_that_costs_more_than_a_lowered_bucket_takes_a_full_one(q: Desk) -> None:
    await change(q, rate=Tokens(capacity=10, refill=1.0))
    await q.put_one("dear", cost=8)
    await q.put_one("cheap", cost=1)
    await change(q, rate=Tokens(capacity=3, refill=1.0))
    assert await q.claim_ids() == ["dear"]
    q.clock.advance(SECOND)
    assert await q.claim_ids() == ["cheap"]


async def test_a_job_that_costs_more_than_a_lowered_bucket_waits_until_it_is_full(q: Desk) -> None:
    await change(q, rate=Tokens(capacity=10, refill=1.0))
    await q.put_one("first", cost=9)
    assert await q.claim_ids() == ["first"]
    await q.put_one("dear", cost=8)
    await change(q, rate=Tokens(capacity=3, refill=1.0))
    settled = await q.exchange(then=q.claiming())
    assert (settled.leases, settled.next_due_ms) == ((), 2 * SECOND)
    q.clock.advance(2 * SECOND)
    assert await q.claim_ids() == ["dear"]


async def test_a_keyed_job_that_costs_more_than_its_keys_lowered_bucket_takes_a_full_one(
    q: Desk,
) -> None:
    await change(q, key_rate=Tokens(capacity=10, refill=1.0), key_limit=5)
    await q.put_one("dear", key="k", cost=8)
    await q.put_one("cheap", key="k", cost=1)
    await change(q, key_rate=Tokens(capacity=3, refill=1.0), key_limit=5)
    assert await q.claim_ids() == ["dear"]
    q.clock.advance(SECOND)
    assert await q.claim_ids() == ["cheap"]


async def test_a_changed_window_keeps_the_starts_it_has_counted(q: Desk) -> None:
    await change(q, rate=Window(limit=2, per_ms=10 * SECOND))
    await q.put(*"abcdef")
    assert await q.claim_ids() == ["a", "b"]
    await change(q, rate=Window(limit=3, per_ms=10 * SECOND))
    assert await q.claim_ids() == ["c"]
    await change(q, rate=Window(limit=1, per_ms=10 * SECOND))
    assert await q.claim_ids() == []
    q.clock.advance(10 * SECOND)
    assert await q.claim_ids() == ["d"]


async def test_a_changed_bucket_keeps_the_tokens_it_has(q: Desk) -> None:
    await change(q, rate=Tokens(capacity=5, refill=1.0))
    await q.put(*"abcdefg")
    assert await q.claim_ids(4) == ["a", "b", "c", "d"]
    await change(q, rate=Tokens(capacity=9, refill=1.0))
    assert await q.claim_ids() == ["e"]


async def test_a_window_that_becomes_a_bucket_begins_full(q: Desk) -> None:
    await change(q, rate=Window(limit=1, per_ms=60 * SECOND))
    await q.put(*"abcd")
    assert await q.claim_ids() == ["a"]
    await change(q, rate=Tokens(capacity=2, refill=1.0))
    assert await q.claim_ids() == ["b", "c"]
    await change(q, rate=Window(limit=1, per_ms=60 * SECOND))
    assert await q.claim_ids() == ["d"]


async def test_a_change_of_a_keys_own_rate_keeps_what_it_has_counted(q: Desk) -> None:
    own = Limits(key_rate=Window(limit=2, per_ms=10 * SECOND), key_limit=9)
    await q.put(*"abcd", key="k")
    await q.store.set_limits(q.queue, own, key="k")
    assert await q.claim_ids() == ["a", "b"]
    await q.store.set_limits(
        q.queue, Limits(key_rate=Window(limit=3, per_ms=10 * SECOND), key_limit=9), key="k"
    )
    assert await q.claim_ids() == ["c"]
    assert await q.claim_ids() == []


async def test_a_lifted_rate_lets_held_keys_go_at_once(q: Desk) -> None:
    await change(q, key_rate=Window(limit=1, per_ms=60 * SECOND), key_limit=9)
    await q.put(*"abc", key="k")
    assert await q.claim_ids() == ["a"]
    await change(q, key_limit=9)
    assert await q.claim_ids() == ["b", "c"]


async def test_a_change_of_limits_lifts_a_hold(q: Desk) -> None:
    await q.put("a", "b")
    await q.settle(hold(await q.take(), 60 * SECOND))
    assert await q.claim() == []
    await change(q, limit=5)
    await q.settle(complete(await q.take()))


async def test_a_key_at_its_rate_leaves_the_queues_bucket_to_others(q: Desk) -> None:
    await change(
        q,
        key_rate=Window(limit=1, per_ms=60 * SECOND),
        rate=Tokens(capacity=3, refill=0.001),
        key_limit=9,
    )
    await q.put_one("a1", key="a", cost=1)
    await q.put_one("a2", key="a", cost=3)
    await q.put_one("b1", key="b", cost=2)
    assert await q.claim_ids() == ["a1", "b1"]


async def test_a_claim_that_fills_the_window_says_when_it_is_over(q: Desk) -> None:
    await change(q, rate=Window(limit=1, per_ms=10 * SECOND))
    await q.put("a", "b")
    settled = await q.exchange(then=q.claiming(5))
    assert ([lease.id for lease in settled.leases], settled.next_due_ms) == (["a"], 10 * SECOND)
