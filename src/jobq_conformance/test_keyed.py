"""Keyed queues: order per key, turns between keys, and a limit of active jobs per key."""

from __future__ import annotations

import asyncio

import pytest

from jobq.core.records.commands import Cancel
from jobq.core.records.jobs import Filter, Lease
from jobq.core.records.queues import Limits, QueueConfig
from jobq.core.records.states import State
from jobq.errors import ConfigError
from jobq_conformance.kit import DAY, LEASE, SECOND, Desk, complete, fail, release, retry
from jobq_conformance.roles import needs

pytestmark = needs("keyed")


async def put_keys(q: Desk, *ids: str) -> None:
    """Jobs whose key is their id's first letter, one call each."""
    for id in ids:
        await q.put_one(id, key=id[0])


async def allow(q: Desk, key_limit: int) -> None:
    await q.store.declare(q.queue, QueueConfig(mode="keyed", limits=Limits(key_limit=key_limit)))


# ── the mode ──────────────────────────────────────────────────────────────────────────────────────


async def test_the_first_job_fixes_an_unset_mode(q: Desk) -> None:
    plain = q.beside("plain")
    await q.put_one("a", key="k")
    await plain.put_one("a")
    assert (await q.store.stats(q.queue)).mode == "keyed"
    assert (await q.store.stats(plain.queue)).mode == "plain"


async def test_a_job_of_the_other_kind_is_refused_and_nothing_is_stored(q: Desk) -> None:
    plain = q.beside("plain")
    await q.put_one("a", key="k")
    await plain.put_one("a")
    with pytest.raises(ConfigError, match="keyed"):
        await q.put_one("b")
    with pytest.raises(ConfigError, match="plain"):
        await q.store.put([plain.spec("b"), plain.spec("c", key="k")])
    assert await q.counts() == await plain.counts() == {"waiting": 1}


async def test_a_declared_mode_is_stored_and_another_is_refused(q: Desk) -> None:
    assert (await q.store.declare(q.queue, QueueConfig(mode="keyed"))).mode == "keyed"
    assert (await q.store.declare(q.queue, QueueConfig())).mode == "keyed"
    with pytest.raises(ConfigError, match="keyed"):
        await q.store.declare(q.queue, QueueConfig(mode="plain"))
    with pytest.raises(ConfigError, match="keyed"):
        await q.put_one("a")


async def test_a_mode_fixed_by_a_job_holds_for_declarations(q: Desk) -> None:
    await q.put_one("a")
    with pytest.raises(ConfigError, match="plain"):
        await q.store.declare(q.queue, QueueConfig(mode="keyed"))


# ── turns and limits ──────────────────────────────────────────────────────────────────────────────


async def test_by_default_one_job_of_a_key_runs_at_a_time(q: Desk) -> None:
    await put_keys(q, "a1", "a2", "b1")
    assert await q.claim_ids() == ["a1", "b1"]
    assert await q.claim() == []


async def test_the_lease_and_the_record_carry_the_key(q: Desk) -> None:
    await q.put_one("a", key="acme/ü:1")
    assert (await q.take()).key == (await q.get("a")).key == "acme/ü:1"
    assert {e.key for e in await q.events("a")} == {"acme/ü:1"}


async def test_keys_take_turns_within_a_claim(q: Desk) -> None:
    await allow(q, 10)
    await put_keys(q, "a1", "a2", "a3", "a4", "b1", "b2", "c1")
    assert await q.claim_ids() == ["a1", "b1", "c1", "a2", "b2", "a3", "a4"]


async def test_keys_take_turns_from_claim_to_claim(q: Desk) -> None:
    await allow(q, 10)
    await put_keys(q, "a1", "a2", "a3", "b1", "b2", "c1")
    assert [(await q.take()).id for _ in range(6)] == ["a1", "b1", "c1", "a2", "b2", "a3"]


async def test_keys_take_turns_when_each_job_is_done_before_the_next(q: Desk) -> None:
    await put_keys(q, "a1", "a2", "a3", "b1", "b2", "b3")
    order = []
    for _ in range(6):
        lease = await q.take()
        order.append(lease.id)
        await q.settle(complete(lease))
    assert order == ["a1", "b1", "a2", "b2", "a3", "b3"]


async def test_a_key_with_many_jobs_delays_another_by_no_more_than_one_rotation(q: Desk) -> None:
    await q.put(*(f"a{n}" for n in range(1000)), key="a")
    await q.put_one("b", key="b")
    assert await q.claim_ids(2) == ["a0", "b"]


async def test_a_new_key_gets_its_turn_within_one_rotation(q: Desk) -> None:
    await allow(q, 100)
    await put_keys(q, *(f"{key}{n}" for n in range(5) for key in "abc"))
    await q.claim(4)
    await put_keys(q, "z1")
    assert "z1" in await q.claim_ids(4)


async def test_inside_a_key_jobs_come_in_order(q: Desk) -> None:
    await allow(q, 3)
    await put_keys(q, *(f"a{n}" for n in range(7)))
    a0, _, _ = await q.claim(10)
    assert await q.claim() == []
    settled = await q.exchange(complete(a0), then=q.claiming(10))
    assert [lease.id for lease in settled.leases] == ["a3"]


async def test_order_is_strict_at_any_concurrency_with_limit_one(
    q_twice: tuple[Desk, Desk],
) -> None:
    first, second = q_twice
    ids = [f"{key}{n}" for n in range(6) for key in "abc"]
    await put_keys(first, *ids)
    started: list[str] = []
    running: list[tuple[Desk, str, Lease]] = []
    while len(started) < len(ids) or running:
        for desk, name in ((first, "w1"), (second, "w2")):
            for lease in await desk.claim(5, worker=name):
                assert lease.key not in {other.key for _, _, other in running}
                started.append(lease.id)
                running.append((desk, name, lease))
        desk, name, oldest = running.pop(0)
        await desk.settle(complete(oldest), worker=name)
    for key in "abc":
        assert [id for id in started if id[0] == key] == [f"{key}{n}" for n in range(6)]


async def test_a_freed_slot_of_a_key_is_used_in_the_same_exchange(q: Desk) -> None:
    await put_keys(q, "a1", "a2")
    settled = await q.exchange(complete(await q.take()), then=q.claiming())
    assert [lease.id for lease in settled.leases] == ["a2"]


@pytest.mark.parametrize("end", ["fail", "retry", "cancel", "stall"])
async def test_every_end_of_a_run_frees_the_key(q: Desk, end: str) -> None:
    await put_keys(q, "a1")
    await q.put_one("a2", key="a", max_stalls=0)
    first = await q.take(lease_ms=SECOND)
    if end == "fail":
        await q.settle(fail(first))
    elif end == "retry":
        await q.settle(retry(first, DAY))
    else:
        await q.alter(Cancel(job=q.key("a1")))
        if end == "cancel":
            await q.settle(release(first))
        else:
            q.clock.advance(2 * SECOND)
    assert await q.claim_ids() == ["a2"]


async def test_cancelling_a_waiting_job_leaves_the_key_as_it_was(q: Desk) -> None:
    await put_keys(q, "a1", "a2", "a3")
    first = await q.take()
    await q.alter(Cancel(job=q.key("a2")))
    assert await q.claim() == []
    settled = await q.exchange(complete(first), then=q.claiming())
    assert [lease.id for lease in settled.leases] == ["a3"]


async def test_a_key_can_have_a_limit_of_its_own(q: Desk) -> None:
    await put_keys(q, *(f"{key}{n}" for n in range(4) for key in "ab"))
    await q.store.set_limits(q.queue, Limits(key_limit=3), key="b")
    assert sorted(await q.claim_ids()) == ["a0", "b0", "b1", "b2"]
    (record,) = await q.store.queues(q.queue.tenant)
    assert record.limits.keys == {"b": Limits(key_limit=3)}


async def test_a_limit_of_its_own_can_be_taken_from_a_key(q: Desk) -> None:
    await put_keys(q, "a1", "a2", "a3")
    await q.store.set_limits(q.queue, Limits(key_limit=2), key="a")
    await q.store.set_limits(q.queue, None, key="a")
    assert await q.claim_ids() == ["a1"]
    (record,) = await q.store.queues(q.queue.tenant)
    assert record.limits.keys == {}


async def test_a_raised_limit_lets_waiting_jobs_of_the_key_start(q: Desk) -> None:
    await put_keys(q, "a1", "a2", "a3")
    assert await q.claim_ids() == ["a1"]
    await q.store.set_limits(q.queue, Limits(key_limit=2), key="a")
    assert await q.claim_ids() == ["a2"]


async def test_a_lowered_limit_waits_for_running_jobs_to_end(q: Desk) -> None:
    await allow(q, 3)
    await put_keys(q, *(f"a{n}" for n in range(5)))
    a0, a1, a2 = await q.claim(3)
    await q.store.set_limits(q.queue, Limits(key_limit=1), key="a")
    assert await q.claim() == []
    await q.settle(complete(a0), complete(a1))
    assert await q.claim() == []
    await q.settle(complete(a2))
    assert await q.claim_ids() == ["a3"]


# ── coming back ───────────────────────────────────────────────────────────────────────────────────


async def test_a_recovered_job_is_next_for_its_key(q: Desk) -> None:
    await put_keys(q, "a1", "a2", "b1")
    await q.claim(2, lease_ms=SECOND)
    q.clock.advance(2 * SECOND)
    leases = await q.claim(10, worker="w2")
    assert sorted(lease.id for lease in leases) == ["a1", "b1"]
    assert await q.state("a2") is State.WAITING


async def test_released_jobs_of_a_key_keep_their_order(q: Desk) -> None:
    await allow(q, 3)
    await put_keys(q, "a1", "a2", "a3", "a4")
    a1, a2, a3 = await q.claim(3)
    await q.settle(release(a2))
    await q.settle(release(a1), release(a3))
    assert await q.claim_ids() == ["a1", "a2", "a3"]


async def test_a_delayed_retry_does_not_hold_its_key_and_returns_to_the_keys_front(q: Desk) -> None:
    await put_keys(q, "a1", "a2", "a3")
    await q.settle(retry(await q.take(), SECOND))
    second = await q.take()
    assert second.id == "a2"
    q.clock.advance(SECOND)
    assert await q.claim() == []
    await q.settle(complete(second))
    assert await q.claim_ids() == ["a1"]


async def test_a_delayed_job_does_not_hold_its_key(q: Desk) -> None:
    await q.put_one("a1", key="a", delay_ms=SECOND)
    await put_keys(q, "a2")
    second = await q.take()
    assert second.id == "a2"
    q.clock.advance(SECOND)
    assert await q.claim() == []
    await q.settle(complete(second))
    assert await q.claim_ids() == ["a1"]


# ── priority, listings, sleepers ──────────────────────────────────────────────────────────────────


async def test_priority_orders_inside_a_key_and_the_turns_ignore_it(q: Desk) -> None:
    await allow(q, 10)
    await put_keys(q, "a1", "b1")
    await q.put_one("a2", key="a", priority=1)
    await q.put_one("b2", key="b", priority=9)
    assert await q.claim_ids() == ["a2", "b2", "a1", "b1"]


async def test_lifo_goes_to_the_front_of_its_key(q: Desk) -> None:
    await put_keys(q, "a1", "b1")
    await q.put_one("a2", key="a", lifo=True)
    assert await q.claim_ids() == ["a2", "b1"]


async def test_jobs_are_found_by_key(q: Desk) -> None:
    await put_keys(q, "a1", "b1", "a2")
    found = []
    cursor = None
    while True:
        page = await q.store.find(Filter(queue=q.queue, key="a"), cursor=cursor)
        found += [r.id for r in page.records]
        cursor = page.cursor
        if cursor is None:
            break
    assert sorted(found) == ["a1", "a2"]


async def test_a_freed_key_wakes_a_sleeper(q: Desk) -> None:
    await put_keys(q, "a1", "a2")
    first = await q.take("w1")
    assert await q.claim(worker="w2") == []
    sleeping = asyncio.create_task(
        q.store.sleep([q.queue], worker="w2", slots=1, timeout_ms=10_000)
    )
    await asyncio.sleep(0)
    await q.settle(complete(first), worker="w1")
    assert await sleeping
    assert await q.claim_ids(worker="w2") == ["a2"]


async def test_a_paused_keyed_queue_gives_nothing(q: Desk) -> None:
    await put_keys(q, "a1")
    await q.store.pause(q.queue)
    assert await q.claim() == []
    await q.store.resume(q.queue)
    assert await q.claim_ids() == ["a1"]


async def test_many_keys_drain_whole(q: Desk) -> None:
    ids = [f"k{key}-{n}" for n in range(3) for key in range(100)]
    await q.store.put([q.spec(id, key=id.split("-")[0]) for id in ids])
    seen: list[str] = []
    while leases := await q.claim(64):
        seen += [lease.id for lease in leases]
        await q.settle(*map(complete, leases))
    assert sorted(seen) == sorted(ids)
    for key in range(100):
        assert [id for id in seen if id.startswith(f"k{key}-")] == [f"k{key}-{n}" for n in range(3)]
    assert await q.counts() == {"completed": 300}


async def test_expired_jobs_do_not_hold_up_their_key(q: Desk) -> None:
    await q.put_one("a1", key="a", ttl_ms=SECOND)
    await put_keys(q, "a2")
    q.clock.advance(LEASE)
    assert await q.claim_ids() == ["a2"]
    assert await q.state("a1") is State.FAILED
