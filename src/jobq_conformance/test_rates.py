"""Rates of a queue and of its keys: windows and token buckets."""

from __future__ import annotations

import pytest

from jobq.core.records.queues import Limits, QueueConfig, Tokens, Window
from jobq.core.records.states import State
from jobq.errors import InvalidJob
from jobq_conformance.kit import DAY, SECOND, Desk, complete, retry
from jobq_conformance.roles import needs

pytestmark = needs("limits")


async def limit(q: Desk, version: int = 1, **limits: object) -> None:
    await q.store.declare(q.queue, QueueConfig(limits=Limits(**limits), limits_version=version))  # type: ignore[arg-type]


# ── rates: windows ────────────────────────────────────────────────────────────────────────────────


async def test_no_more_starts_than_the_window_allows(q: Desk) -> None:
    await limit(q, rate=Window(limit=2, per_ms=10 * SECOND))
    await q.put(*(f"j{n}" for n in range(5)))
    assert await q.claim_ids() == ["j0", "j1"]
    settled = await q.exchange(then=q.claiming(5))
    assert settled.leases == ()
    assert settled.next_due_ms == 10 * SECOND
    q.clock.advance(10 * SECOND)
    assert await q.claim_ids() == ["j2", "j3"]


async def test_being_limited_is_no_attempt(q: Desk) -> None:
    await limit(q, rate=Window(limit=1, per_ms=10 * SECOND))
    await q.put("a", "b")
    await q.claim(5)
    for _ in range(3):
        assert await q.claim(5) == []
    record = await q.get("b")
    assert (record.state, record.attempt, record.failures) == (State.WAITING, 0, 0)
    assert await q.kinds("b") == ["accepted"]


async def test_a_window_is_fixed_and_opened_by_its_first_start(q: Desk) -> None:
    await limit(q, rate=Window(limit=2, per_ms=10 * SECOND))
    q.clock.advance(7 * SECOND)
    await q.put(*(f"j{n}" for n in range(9)))
    assert await q.claim_ids(1) == ["j0"]
    q.clock.advance(9 * SECOND)
    assert await q.claim_ids() == ["j1"]
    settled = await q.exchange(then=q.claiming(5))
    assert settled.next_due_ms == SECOND
    q.clock.advance(SECOND)
    assert await q.claim_ids() == ["j2", "j3"]
    q.clock.advance(9 * SECOND)
    assert await q.claim_ids() == []
    q.clock.advance(SECOND)
    assert await q.claim_ids() == ["j4", "j5"]


async def test_a_window_allows_starts_though_all_have_ended(q: Desk) -> None:
    await limit(q, rate=Window(limit=1, per_ms=10 * SECOND))
    await q.put("a", "b")
    await q.settle(complete(await q.take()))
    assert await q.claim() == []


async def test_retries_count_in_the_window(q: Desk) -> None:
    await limit(q, rate=Window(limit=2, per_ms=10 * SECOND))
    await q.put("a", "b")
    await q.settle(retry(await q.take()))
    assert await q.claim_ids() == ["b"]
    assert await q.claim() == []
    q.clock.advance(10 * SECOND)
    assert (await q.take()).attempt == 2


# ── rates: token buckets ──────────────────────────────────────────────────────────────────────────


async def test_a_start_takes_the_jobs_cost_from_the_bucket(q: Desk) -> None:
    await limit(q, rate=Tokens(capacity=10, refill=1.0))
    await q.put("a", "b", "c", cost=4)
    assert await q.claim_ids() == ["a", "b"]
    settled = await q.exchange(then=q.claiming(5))
    assert settled.next_due_ms == 2 * SECOND
    q.clock.advance(2 * SECOND)
    assert await q.claim_ids() == ["c"]


async def test_a_bucket_fills_up_to_its_capacity(q: Desk) -> None:
    await limit(q, rate=Tokens(capacity=3, refill=1.0))
    await q.put(*(f"j{n}" for n in range(9)))
    assert len(await q.claim_ids()) == 3
    q.clock.advance(DAY)
    assert len(await q.claim_ids()) == 3
    q.clock.advance(SECOND)
    assert len(await q.claim_ids()) == 1


async def test_a_slow_bucket_loses_no_fraction(q: Desk) -> None:
    await limit(q, rate=Tokens(capacity=1, refill=0.1))
    await q.put(*(f"j{n}" for n in range(5)))
    assert await q.claim_ids() == ["j0"]
    for _ in range(9):
        q.clock.advance(SECOND)
        assert await q.claim() == []
    q.clock.advance(SECOND)
    assert await q.claim_ids() == ["j1"]


async def test_a_job_that_cannot_be_paid_for_yet_is_not_overtaken(q: Desk) -> None:
    await limit(q, rate=Tokens(capacity=10, refill=1.0))
    await q.put_one("a", cost=8)
    await q.put_one("dear", cost=5)
    await q.put_one("cheap", cost=1)
    assert await q.claim_ids() == ["a"]
    q.clock.advance(3 * SECOND)
    assert await q.claim_ids() == ["dear"]


async def test_a_cost_above_capacity_is_refused_and_nothing_is_stored(q: Desk) -> None:
    await limit(q, rate=Tokens(capacity=10, refill=1.0))
    with pytest.raises(InvalidJob, match="11"):
        await q.store.put([q.spec("a"), q.spec("b", cost=11)])
    assert await q.counts() == {}
    await q.put_one("a", cost=10)
    assert await q.claim_ids() == ["a"]


async def test_a_cost_above_the_capacity_of_a_keys_bucket_is_refused(q: Desk) -> None:
    await limit(q, key_rate=Tokens(capacity=10, refill=1.0))
    with pytest.raises(InvalidJob, match="11"):
        await q.put_one("a", key="k", cost=11)


async def test_where_no_bucket_pays_any_cost_will_do(q: Desk) -> None:
    await limit(q, rate=Window(limit=5, per_ms=SECOND))
    await q.put_one("a", cost=1_000)
    assert await q.claim_ids() == ["a"]


# ── rates per key ─────────────────────────────────────────────────────────────────────────────────


async def test_a_rate_of_one_key_never_holds_up_another(q: Desk) -> None:
    await limit(q, key_limit=10, key_rate=Window(limit=1, per_ms=10 * SECOND))
    await q.store.put([q.spec(f"{key}{n}", key=key) for key in "ab" for n in range(3)])
    assert await q.claim_ids() == ["a0", "b0"]
    await q.put_one("c0", key="c")
    assert await q.claim_ids() == ["c0"]
    q.clock.advance(10 * SECOND)
    assert sorted(await q.claim_ids()) == ["a1", "b1"]


async def test_a_claim_that_gives_up_among_keys_at_their_rate_says_that_there_may_be_more(
    q: Desk,
) -> None:
    await limit(q, key_limit=10, key_rate=Window(limit=1, per_ms=10 * SECOND))
    await q.store.put(
        [q.spec(f"{n}.{key}", key=f"k{key}") for n in range(2) for key in range(1_200)]
    )
    for _ in range(12):  # each key has its one start, and one more job that must wait
        await q.settle(*(complete(lease) for lease in await q.claim(100)))
    await q.put_one("free", key="free")
    for _ in range(3):
        settled = await q.exchange(then=q.claiming(1))
        if settled.leases:
            break
        assert settled.next_due_ms == 0
    assert [lease.id for lease in settled.leases] == ["free"]


async def test_every_key_has_its_own_bucket(q: Desk) -> None:
    await limit(q, key_limit=10, key_rate=Tokens(capacity=5, refill=1.0))
    await q.store.put(
        [
            q.spec("a0", key="a", cost=5),
            q.spec("a1", key="a"),
            q.spec("b0", key="b"),
            q.spec("b1", key="b", cost=4),
        ]
    )
    assert sorted(await q.claim_ids()) == ["a0", "b0", "b1"]
    q.clock.advance(SECOND)
    assert await q.claim_ids() == ["a1"]


async def test_a_key_can_have_a_rate_of_its_own(q: Desk) -> None:
    await limit(q, key_limit=10)
    await q.store.set_limits(
        q.queue, Limits(key_limit=10, key_rate=Window(limit=1, per_ms=10 * SECOND)), key="a"
    )
    await q.store.put([q.spec(f"{key}{n}", key=key) for n in range(2) for key in "ab"])
    assert await q.claim_ids() == ["a0", "b0", "b1"]
    await q.store.set_limits(q.queue, None, key="a")
    assert await q.claim_ids() == ["a1"]
