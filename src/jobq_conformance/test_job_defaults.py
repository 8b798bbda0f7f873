"""Defaults of a queue's jobs: max_retries and ttl, behind what the call and the task give."""

from __future__ import annotations

import pytest

from jobq.core.records.jobs import UniqueSpec
from jobq.core.records.queues import NO_DEFAULTS, Fire, JobDefaults, QueueConfig, ScheduleSpec
from jobq.core.records.states import State
from jobq_conformance.kit import DAY, LEASE, SECOND, Desk, fail, read_all, release, retry
from jobq_conformance.roles import needs

pytestmark = needs("limits", "retention", "delays")


async def give(q: Desk, **defaults: int | None) -> JobDefaults:
    """Declare defaults, and return those in force."""
    config = QueueConfig(defaults=JobDefaults(**defaults))
    return (await q.store.declare(q.queue, config)).defaults


async def ttl(q: Desk, id: str) -> int | None:
    return (await q.get(id)).options.ttl_ms


# ── what is stored ────────────────────────────────────────────────────────────────────────────────


async def test_defaults_are_stored_replaced_and_kept_by_a_declaration_without_them(
    q: Desk,
) -> None:
    assert (await q.store.declare(q.queue, QueueConfig())).defaults == NO_DEFAULTS
    both = JobDefaults(max_retries=0, ttl_ms=10 * SECOND)
    assert await give(q, max_retries=0, ttl_ms=10 * SECOND) == both
    assert (await q.store.declare(q.queue, QueueConfig(mode="plain"))).defaults == both
    (listed,) = [each for each in await q.store.queues(q.queue.tenant) if each.queue == q.queue]
    assert listed.defaults == both
    assert await give(q, max_retries=7) == JobDefaults(max_retries=7)
    assert await give(q) == NO_DEFAULTS


# ── ttl ───────────────────────────────────────────────────────────────────────────────────────────


async def test_a_new_job_has_the_queues_ttl_unless_it_has_its_own(q: Desk) -> None:
    await q.put_one("before")
    await give(q, ttl_ms=10 * SECOND)
    await q.put("a", "b")
    await q.put_one("own", ttl_ms=DAY)
    await q.put_one("rich", priority=2, meta={"who": "ada"}, max_stalls=1)
    assert [await ttl(q, id) for id in ("before", "a", "b", "own", "rich")] == [
        None,
        10 * SECOND,
        10 * SECOND,
        DAY,
        10 * SECOND,
    ]
    rich = await q.get("rich")
    assert (rich.priority, rich.meta, rich.options.max_stalls) == (2, {"who": "ada"}, 1)
    q.clock.advance(11 * SECOND)
    assert await q.claim_ids() == ["before", "own"]
    assert await q.states("a", "b", "rich") == ["failed"] * 3
    record = await q.get("a")
    assert record.failure is not None
    assert record.failure.reason == "expired"


async def test_a_default_ttl_counts_from_the_time_the_job_is_due(q: Desk) -> None:
    await give(q, ttl_ms=10 * SECOND)
    await q.put_one("a", delay_ms=DAY)
    q.clock.advance(DAY + 9 * SECOND)
    lease = await q.take()
    await q.settle(release(lease))
    q.clock.advance(DAY)
    assert await q.claim_ids() == ["a"]  # it has started in time, so it expires no more


async def test_a_default_ttl_ends_with_the_declaration_for_jobs_that_come_later(q: Desk) -> None:
    await give(q, ttl_ms=10 * SECOND)
    await q.put_one("a")
    await give(q)
    await q.put_one("b")
    q.clock.advance(11 * SECOND)
    assert await q.claim_ids() == ["b"]


@pytest.mark.parametrize("key", ["k"])
async def test_jobs_with_keys_have_the_default_ttl(q: Desk, key: str) -> None:
    await q.store.declare(q.queue, QueueConfig(mode="keyed", defaults=JobDefaults(ttl_ms=SECOND)))
    await q.put("a", "b", key=key)
    assert await ttl(q, "b") == SECOND
    q.clock.advance(2 * SECOND)
    assert await q.claim_ids() == []
    assert await q.states("a", "b") == ["failed", "failed"]


async def test_members_of_flows_and_replaced_jobs_have_the_default_ttl(q: Desk) -> None:
    await give(q, ttl_ms=10 * SECOND)
    await q.store.put(
        [q.spec("child"), q.spec("parent", after=(q.edge("child"),))], flow="f", last=True
    )
    lock = UniqueSpec(lock="L", mode="debounce", ttl_ms=None)
    await q.put_one("one", unique=lock, delay_ms=SECOND)
    await q.put_one("two", unique=lock, delay_ms=SECOND)
    assert [await ttl(q, id) for id in ("child", "parent", "one")] == [10 * SECOND] * 3


async def test_jobs_of_schedules_have_the_default_ttl(q: Desk) -> None:
    await give(q, ttl_ms=10 * SECOND)
    at = q.clock.now_ms
    template = q.spec("ignored", name="digest")
    schedule = ScheduleSpec(queue=q.queue, id="often", template=template, every_ms=SECOND)
    await q.store.put_schedule(schedule, next_ms=at)
    fired = Fire(queue=q.queue, schedule="often", at_ms=at, next_ms=at + SECOND)
    assert await q.store.fire([fired]) == [True]
    assert await ttl(q, f"often@{at}") == 10 * SECOND


async def test_a_dead_letter_does_not_expire_by_the_default_of_its_queue(q: Desk) -> None:
    graves = q.beside("graves")
    await give(graves, ttl_ms=SECOND)
    await q.store.declare(q.queue, QueueConfig(dead_letters="graves"))
    await q.put_one("a")
    await q.settle(fail(await q.take()))
    await q.tick()
    (copy,) = await read_all(q.store, graves.queue)
    assert (copy.state, copy.options.ttl_ms) == (State.WAITING, None)
    q.clock.advance(DAY // 2)
    assert await graves.claim_ids() == [copy.id]


# ── max_retries ───────────────────────────────────────────────────────────────────────────────────


async def test_a_lease_carries_the_default_retries_of_its_queue(q: Desk) -> None:
    await q.put("early", "second")
    assert (await q.take()).default_retries is None
    await give(q, max_retries=0)
    assert (await q.take()).default_retries == 0  # also for a job that was queued before
    await q.put_one("a")
    lease = await q.take()
    assert lease.default_retries == 0
    assert lease.retry is None
    await q.settle(retry(lease))
    await give(q, max_retries=7)
    lease = await q.take()
    assert (lease.id, lease.attempt, lease.default_retries) == ("a", 2, 7)


async def test_a_repeated_call_and_a_stalled_job_carry_it_too(q: Desk) -> None:
    await give(q, max_retries=5)
    await q.put_one("a")
    first = await q.exchange(call="once", then=q.claiming(1))
    again = await q.exchange(call="once", then=q.claiming(1))
    assert [lease.default_retries for lease in (*first.leases, *again.leases)] == [5, 5]
    q.clock.advance(LEASE + 1)
    lease = await q.take()
    assert (lease.stalls, lease.default_retries) == (1, 5)


async def test_leases_of_two_queues_carry_each_its_own(q: Desk) -> None:
    other = q.beside("other")
    await give(q, max_retries=5)
    await q.put_one("a")
    await other.put_one("b")
    both = q.claiming(2, queues=(q.queue, other.queue))
    leases = (await q.exchange(then=both)).leases
    assert {lease.id: lease.default_retries for lease in leases} == {"a": 5, "b": None}
