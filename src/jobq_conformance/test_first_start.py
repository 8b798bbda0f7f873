"""What changes with the first start of a job: debounce no longer replaces it, and it cannot be
changed.
"""

from __future__ import annotations

import pytest

from jobq.core.records.commands import Cancel, Reprioritise, Rerun, Update
from jobq.core.records.jobs import JobKey, UniqueSpec
from jobq.core.records.queues import Fire, QueueConfig, RetentionData, ScheduleSpec
from jobq.core.records.states import State
from jobq_conformance.kit import (
    LEASE,
    SECOND,
    Desk,
    block,
    complete,
    fail,
    release,
    retry,
    snooze,
)

DEBOUNCE = UniqueSpec(lock="L", mode="debounce")
KEEP_LAST = UniqueSpec(lock="L", mode="keep_last")
THROTTLE = UniqueSpec(lock="L", mode="throttle", ttl_ms=60 * SECOND)
WAYS = ["running", "retried", "delayed", "snoozed", "released", "stalled", "blocked"]


async def start(q: Desk, id: str, way: str) -> State:
    """Start the next job, bring it to the state that `way` names, and return that state."""
    lease = await q.take()
    assert lease.id == id
    if way == "retried":
        await q.settle(retry(lease))
    elif way == "delayed":
        await q.settle(retry(lease, SECOND))
    elif way == "snoozed":
        await q.settle(snooze(lease, SECOND, b"half"))
    elif way == "released":
        await q.settle(release(lease))
    elif way == "blocked":
        await q.settle(block(lease, signal="go", saved=b"half"))
    elif way == "stalled":
        q.clock.advance(LEASE + SECOND)
        await q.tick()
    return await q.state(id)


# ── debounce ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("way", WAYS)
async def test_debounce_leaves_a_started_job_its_arguments_and_accepts_a_new_one(
    q: Desk, way: str
) -> None:
    await q.put_one("a", unique=DEBOUNCE, payload=b"1")
    stood = await start(q, "a", way)
    result = await q.put_one("b", unique=DEBOUNCE, delay_ms=5 * SECOND, payload=b"2")
    assert (result.id, result.duplicate, result.state) == ("b", False, State.DELAYED)
    record = await q.get("a")
    assert (record.state, record.payload) == (stood, b"1")


async def test_a_blocked_job_keeps_its_wait_when_a_debounced_one_comes(q: Desk) -> None:
    await q.put_one("a", unique=DEBOUNCE, payload=b"1")
    await q.settle(block(await q.take(), signal="go", timeout_ms=10 * SECOND, saved=b"half"))
    await q.put_one("b", unique=DEBOUNCE, delay_ms=60 * SECOND, payload=b"2")
    q.clock.advance(10 * SECOND)
    lease = await q.take()
    assert (lease.id, lease.payload, lease.saved, lease.signals) == (
        "a",
        b"1",
        b"half",
        (("go", b""),),
    )


async def test_the_new_job_takes_the_lock_of_a_debounced_one_that_has_started(q: Desk) -> None:
    await q.put_one("a", unique=DEBOUNCE)
    await q.settle(retry(await q.take(), SECOND))
    await q.put_one("b", unique=DEBOUNCE, delay_ms=60 * SECOND)
    third = await q.put_one("c", unique=DEBOUNCE, delay_ms=60 * SECOND, payload=b"3")
    assert (third.id, third.duplicate) == ("b", True)
    q.clock.advance(SECOND)
    await q.settle(fail(await q.take()))
    assert not await q.alter(Rerun(job=q.key("a")))
    assert (await q.put_one("d", unique=DEBOUNCE, delay_ms=SECOND)).id == "b"


# ── what a replaced job keeps ─────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("unique", [DEBOUNCE, KEEP_LAST], ids=lambda u: u.mode)
async def test_a_replaced_job_keeps_its_name_and_priority_and_gets_the_other_options(
    q: Desk, unique: UniqueSpec
) -> None:
    await q.put_one(
        "a", unique=unique, delay_ms=SECOND, name="first", priority=3, timeout_ms=1, payload=b"1"
    )
    await q.put_one(
        "b", unique=unique, delay_ms=SECOND, name="second", priority=7, timeout_ms=2, payload=b"2"
    )
    record = await q.get("a")
    assert (record.name, record.priority, record.payload) == ("first", 3, b"2")
    q.clock.advance(SECOND)
    assert (await q.take()).timeout_ms == 2


@pytest.mark.parametrize("unique", [DEBOUNCE, KEEP_LAST], ids=lambda u: u.mode)
async def test_the_ttl_of_a_waiting_job_is_replaced_too(q: Desk, unique: UniqueSpec) -> None:
    await q.put_one("a", unique=unique, ttl_ms=5 * SECOND)
    await q.put_one("b", unique=unique, ttl_ms=20 * SECOND)
    q.clock.advance(6 * SECOND)
    await q.tick()
    assert await q.state("a") is State.WAITING
    await q.put_one("c", unique=unique, ttl_ms=7 * SECOND)
    q.clock.advance(SECOND)
    await q.tick()
    assert await q.state("a") is State.FAILED


async def test_an_after_complete_schedule_goes_on_when_its_job_was_replaced(q: Desk) -> None:
    template = q.spec("s", unique=KEEP_LAST)
    spec = ScheduleSpec(
        queue=q.queue, id="s", template=template, every_ms=SECOND, after_complete=True
    )
    await q.store.put_schedule(spec, next_ms=q.clock.now_ms)
    at = q.clock.now_ms
    assert await q.store.fire([Fire(queue=q.queue, schedule="s", at_ms=at, next_ms=None)]) == [True]
    assert (await q.put_one("b", unique=KEEP_LAST, payload=b"2")).duplicate
    await q.settle(complete(await q.take()))
    await q.tick()
    (stored,) = await q.store.list_schedules(q.queue)
    assert stored.next_ms == at + SECOND


async def test_a_given_id_stays_one_when_its_job_is_replaced(q: Desk) -> None:
    await q.store.declare(q.queue, QueueConfig(retention=RetentionData(count=0)))
    await q.put_one("a", unique=KEEP_LAST, given_id=True)
    await q.put_one("b", unique=KEEP_LAST)
    await q.settle(complete(await q.take()))
    await q.tick()
    assert await q.states("a") == ["completed"]


# ── keep_last and throttle ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("way", WAYS)
async def test_keep_last_follows_a_job_that_has_started(q: Desk, way: str) -> None:
    await q.put_one("a", unique=KEEP_LAST, payload=b"1")
    await start(q, "a", way)
    result = await q.put_one("b", unique=KEEP_LAST, payload=b"2")
    assert (result.id, result.duplicate, result.state) == ("b", False, State.BLOCKED)
    assert (await q.put_one("c", unique=KEEP_LAST, payload=b"3")).id == "b"
    assert (await q.get("a")).payload == b"1"


async def test_keep_last_follows_a_job_that_was_rerun(q: Desk) -> None:
    await q.run("a", unique=KEEP_LAST)
    assert await q.alter(Rerun(job=q.key("a")))
    result = await q.put_one("b", unique=KEEP_LAST)
    assert (result.id, result.duplicate, result.state) == ("b", False, State.BLOCKED)


async def test_throttle_holds_its_lock_when_the_record_has_been_swept(q: Desk) -> None:
    await q.run("a", unique=THROTTLE, result_ttl_ms=SECOND)
    q.clock.advance(2 * SECOND)
    await q.tick()
    await q.put_one("x")  # on some stores it gets the place of the record that is gone
    result = await q.put_one("b", unique=THROTTLE)
    assert (result.id, result.duplicate, result.state, result.found) == (
        "a",
        True,
        State.COMPLETED,
        None,
    )
    q.clock.advance(60 * SECOND)
    assert not (await q.put_one("b", unique=THROTTLE)).duplicate


# ── update and reprioritise ───────────────────────────────────────────────────────────────────────


def commands(key: JobKey) -> list[Update | Reprioritise]:
    return [Update(job=key, payload=b"new"), Reprioritise(job=key, priority=5)]


@pytest.mark.parametrize("way", WAYS)
async def test_a_started_job_is_neither_updated_nor_reprioritised(q: Desk, way: str) -> None:
    await q.put_one("a", payload=b"old")
    await start(q, "a", way)
    before = await q.kinds("a")
    for command in commands(q.key("a")):
        assert not await q.alter(command)
    record = await q.get("a")
    assert (record.payload, record.priority, await q.kinds("a")) == (b"old", 0, before)


async def test_a_job_that_has_never_started_is_updated_and_reprioritised(q: Desk) -> None:
    await q.put("child")
    await q.put_one("delayed", delay_ms=SECOND)
    await q.put_one("blocked", after=(q.edge("child"),))
    await q.put_one("waiting")
    for id in ("delayed", "blocked", "waiting"):
        for command in commands(q.key(id)):
            assert await q.alter(command)
        record = await q.get(id)
        assert (record.state, record.payload, record.priority) == (id, b"new", 5)


async def test_an_ended_job_is_neither_updated_nor_reprioritised(q: Desk) -> None:
    await q.put("a")
    await q.alter(Cancel(job=q.key("a")))
    for command in commands(q.key("a")):
        assert not await q.alter(command)
