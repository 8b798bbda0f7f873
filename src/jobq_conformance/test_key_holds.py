"""Holds of a key: none of its jobs starts before a time, and other keys go on."""

from __future__ import annotations

import pytest

from jobq.core.records.queues import Limits, QueueConfig, Window
from jobq.errors import ConfigError
from jobq_conformance.holding import held, put_keyed
from jobq_conformance.kit import (
    HOUR,
    MINUTE,
    SECOND,
    Desk,
    complete,
    hold,
    release,
)
from jobq_conformance.roles import needs

pytestmark = needs("limits", "keyed")


async def test_a_held_key_starts_nothing_and_others_do(q: Desk) -> None:
    await put_keyed(q)
    await q.store.hold(q.queue, MINUTE, "a")
    assert await held(q) == (None, {"a": MINUTE})
    for id in ("b0", "b1"):
        lease = await q.take()
        assert lease.id == id
        await q.settle(complete(lease))
    assert await q.claim() == []
    q.clock.advance(MINUTE)
    assert await q.claim_ids() == ["a0"]


async def test_a_claim_tells_when_the_next_held_key_may_go_on(q: Desk) -> None:
    await put_keyed(q, n=1, keys="a")
    await q.store.hold(q.queue, MINUTE, "a")
    settled = await q.exchange(then=q.claiming())
    assert (settled.leases, settled.next_due_ms) == ((), MINUTE)


async def test_a_key_without_jobs_can_be_held_before_they_come(q: Desk) -> None:
    await put_keyed(q, n=1, keys="b")
    await q.store.hold(q.queue, MINUTE, "a")
    await put_keyed(q, n=1, keys="a")
    await q.settle(complete(await q.take()))
    assert await q.claim() == []
    q.clock.advance(MINUTE)
    assert await q.claim_ids() == ["a0"]


async def test_of_two_holds_of_a_key_the_later_end_stays(q: Desk) -> None:
    await put_keyed(q)
    await q.store.hold(q.queue, MINUTE, "a")
    await q.store.hold(q.queue, SECOND, "a")
    assert await held(q) == (None, {"a": MINUTE})
    await q.store.hold(q.queue, HOUR, "a")
    assert await held(q) == (None, {"a": HOUR})


async def test_a_released_key_starts_at_once(q: Desk) -> None:
    await put_keyed(q)
    await q.store.hold(q.queue, HOUR, "a")
    assert await q.claim_ids() == ["b0"]
    assert not await q.store.release_hold(q.queue, "b")
    assert not await q.store.release_hold(q.queue)
    assert await q.store.release_hold(q.queue, "a")
    assert await held(q) == (None, {})
    assert await q.claim_ids() == ["a0"]


async def test_a_key_held_by_a_handler_shows_and_can_be_lifted(q: Desk) -> None:
    await put_keyed(q)
    await q.settle(hold(await q.take(), HOUR))
    assert await held(q) == (None, {"a": HOUR})
    assert await q.store.release_hold(q.queue, "a")
    assert sorted(await q.claim_ids()) == ["a0", "b0"]


async def test_the_last_lease_of_a_held_key_ends_without_ending_the_hold(q: Desk) -> None:
    await q.put_one("a0", key="a")
    lease = await q.take()
    await q.store.hold(q.queue, MINUTE, "a")
    await q.settle(complete(lease))
    await q.put_one("a1", key="a")
    assert await q.claim() == []
    q.clock.advance(MINUTE)
    assert await q.claim_ids() == ["a1"]


async def test_a_job_released_under_the_hold_of_its_key_waits(q: Desk) -> None:
    await q.put_one("a0", key="a")
    lease = await q.take()
    await q.store.hold(q.queue, MINUTE, "a")
    await q.settle(release(lease))
    assert await q.claim() == []
    assert await q.store.release_hold(q.queue, "a")
    assert await q.claim_ids() == ["a0"]


async def test_a_key_at_its_rate_is_not_held_and_a_lifted_hold_keeps_to_the_rate(q: Desk) -> None:
    limits = Limits(key_limit=5, key_rate=Window(limit=1, per_ms=MINUTE))
    await q.store.declare(q.queue, QueueConfig(limits=limits))
    await put_keyed(q, keys="a")
    await q.settle(complete(await q.take()))
    assert await q.claim() == []
    assert await held(q) == (None, {})
    await q.store.hold(q.queue, HOUR, "a")
    assert await q.store.release_hold(q.queue, "a")
    assert await q.claim() == []
    q.clock.advance(MINUTE)
    assert await q.claim_ids() == ["a1"]


async def test_a_released_key_keeps_to_its_limit(q: Desk) -> None:
    await put_keyed(q, keys="a")
    lease = await q.take()
    await q.store.hold(q.queue, HOUR, "a")
    assert await q.store.release_hold(q.queue, "a")
    assert await q.claim() == []
    await q.settle(complete(lease))
    assert await q.claim_ids() == ["a1"]


async def test_the_list_of_held_keys_is_bounded_and_begins_with_those_that_end_first(
    q: Desk,
) -> None:
    await put_keyed(q, n=1, keys="abcdef")
    for n, key in enumerate("fedcba", 1):
        await q.store.hold(q.queue, n * MINUTE, key)
    found = await q.store.holds(q.queue, limit=3)
    assert {key: ends - q.clock() for key, ends in found.keys.items()} == {
        "f": MINUTE,
        "e": 2 * MINUTE,
        "d": 3 * MINUTE,
    }
    q.clock.advance(5 * MINUTE)
    await q.tick()
    assert await held(q) == (None, {"a": MINUTE})


async def test_a_key_of_a_plain_queue_cannot_be_held(q: Desk) -> None:
    await q.put("a")
    with pytest.raises(ConfigError, match="is plain, so its jobs have no keys"):
        await q.store.hold(q.queue, MINUTE, "a")
    assert await held(q) == (None, {})
    assert await q.claim_ids() == ["a"]
