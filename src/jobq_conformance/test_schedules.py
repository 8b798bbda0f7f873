"""Schedules: stored once, and fired once per time by any number of callers."""

from __future__ import annotations

import asyncio

import pytest

from jobq.core.records.commands import Cancel
from jobq.core.records.jobs import JobSpec, UniqueSpec
from jobq.core.records.queues import Fire, ScheduleRecord, ScheduleSpec
from jobq.core.records.states import QueueKind, State
from jobq_conformance.kit import DAY, HOUR, SECOND, Desk, complete, fail, read_all
from jobq_conformance.roles import needs

pytestmark = needs("schedules")


def nightly(q: Desk, id: str = "nightly", **fields: object) -> ScheduleSpec:
    given: dict[str, object] = {
        "template": q.spec("ignored", name="digest", payload=b"[[1],{}]", priority=3),
        "cron": "0 6 * * *",
    }
    return ScheduleSpec(queue=q.queue, id=id, **{**given, **fields})  # type: ignore[arg-type]


def every(q: Desk, id: str = "often", **fields: object) -> ScheduleSpec:
    return nightly(q, id, cron=None, every_ms=10 * SECOND, **fields)


def fire(q: Desk, at_ms: int, next_ms: int | None, id: str = "nightly", **fields: bool) -> Fire:
    return Fire(queue=q.queue, schedule=id, at_ms=at_ms, next_ms=next_ms, **fields)


async def only(q: Desk, id: str = "nightly") -> ScheduleRecord:
    (record,) = [s for s in await q.store.list_schedules(q.queue) if s.spec.id == id]
    return record


async def test_a_schedule_is_stored_as_given(q: Desk) -> None:
    spec = nightly(q, tz="Europe/Zurich", start_ms=1, end_ms=2**45, limit=7, catch_up="all")
    at = q.clock.now_ms + HOUR
    record = await q.store.put_schedule(spec, next_ms=at)
    assert (record.spec, record.next_ms, record.fired, record.last_ms, record.paused) == (
        spec,
        at,
        0,
        None,
        False,
    )
    assert await q.store.list_schedules(q.queue) == [record]
    assert await q.counts() == {}


async def test_a_schedule_fires_a_job_of_its_template(q: Desk) -> None:
    at = q.clock.now_ms
    await q.store.put_schedule(nightly(q), next_ms=at)
    assert await q.store.fire([fire(q, at, at + DAY)]) == [True]
    record = await only(q)
    assert (record.next_ms, record.fired, record.last_ms) == (at + DAY, 1, at)
    lease = await q.take()
    assert (lease.id, lease.name, lease.payload) == (f"nightly@{at}", "digest", b"[[1],{}]")
    made = await q.get(lease.id)
    assert (made.schedule, made.priority) == ("nightly", 3)


async def test_the_job_is_made_when_it_fires_and_never_held_delayed(q: Desk) -> None:
    at = q.clock.now_ms + DAY
    await q.store.put_schedule(nightly(q, template=q.spec("x", delay_ms=DAY)), next_ms=at)
    assert await q.counts() == {}
    q.clock.advance(DAY)
    await q.store.fire([fire(q, at, at + DAY)])
    assert await q.counts() == {"waiting": 1}


async def due_ids(q: Desk) -> list[str]:
    """The due schedules of the test's tenant, as a scheduler finds them."""
    found = await q.store.list_schedules(due=True, limit=1000)
    return [s.spec.id for s in found if s.spec.queue.tenant == q.queue.tenant]


async def test_a_schedule_is_found_when_due_also_if_it_was_stored_after_many_looks(
    q: Desk,
) -> None:
    beside, now = q.beside("other"), q.clock.now_ms
    await q.store.put_schedule(nightly(q, "far"), next_ms=now + DAY)
    assert await due_ids(q) == []
    await q.store.put_schedule(nightly(q, "soon"), next_ms=now + SECOND)
    await beside.store.put_schedule(nightly(beside, "there"), next_ms=now + 2 * SECOND)
    assert await due_ids(q) == []
    q.clock.advance(SECOND)
    assert await due_ids(q) == ["soon"]
    assert await due_ids(q) == ["soon"]
    await q.store.put_schedule(every(q, "far"), next_ms=now)  # it is another schedule now
    assert await due_ids(q) == ["far", "soon"]
    assert await q.store.fire([fire(q, now, now + DAY, "far")]) == [True]
    await q.store.pause_schedule(q.queue, "soon", paused=True)
    q.clock.advance(SECOND)
    assert await due_ids(q) == ["there"]
    await q.store.pause_schedule(q.queue, "soon", paused=False)
    assert await due_ids(q) == ["soon", "there"]


async def test_only_due_schedules_are_listed_as_due(q: Desk) -> None:
    beside = q.beside("other")
    now = q.clock.now_ms
    await q.store.put_schedule(nightly(q, "now"), next_ms=now)
    await q.store.put_schedule(nightly(q, "later"), next_ms=now + HOUR)
    await q.store.put_schedule(nightly(q, "over"), next_ms=None)
    await beside.store.put_schedule(nightly(beside, "past"), next_ms=now - HOUR)
    due = [
        s.spec.id
        for s in await q.store.list_schedules(due=True, limit=1000)
        if s.spec.queue.tenant == q.queue.tenant
    ]
    assert sorted(due) == ["now", "past"]
    assert [s.spec.id for s in await q.store.list_schedules(q.queue, due=True)] == ["now"]
    assert sorted(s.spec.id for s in await q.store.list_schedules(q.queue)) == [
        "later",
        "now",
        "over",
    ]
    q.clock.advance(2 * HOUR)
    assert sorted(s.spec.id for s in await q.store.list_schedules(q.queue, due=True)) == [
        "later",
        "now",
    ]


async def test_each_time_fires_exactly_once_among_many_callers(q_twice: tuple[Desk, Desk]) -> None:
    first, second = q_twice
    at = first.clock.now_ms
    await first.store.put_schedule(nightly(first), next_ms=at)
    answers = await asyncio.gather(
        *(desk.store.fire([fire(desk, at, at + DAY)]) for desk in (first, second) for _ in range(4))
    )
    assert sorted(answer for (answer,) in answers) == [False] * 7 + [True]
    assert await first.counts() == {"waiting": 1}
    assert (await only(first)).fired == 1


async def test_a_fire_for_another_time_than_the_next_does_nothing(q: Desk) -> None:
    at = q.clock.now_ms
    await q.store.put_schedule(nightly(q), next_ms=at)
    assert (
        await q.store.fire(
            [
                fire(q, at - SECOND, at + DAY),
                fire(q, at + SECOND, at + DAY),
                fire(q, at, at + DAY, "nobody"),
            ]
        )
        == [False] * 3
    )
    assert await q.counts() == {}


async def test_a_skipped_time_moves_on_and_makes_no_job(q: Desk) -> None:
    at = q.clock.now_ms
    await q.store.put_schedule(nightly(q), next_ms=at)
    assert await q.store.fire([fire(q, at, at + DAY, skipped=True)]) == [True]
    record = await only(q)
    assert (record.next_ms, record.fired) == (at + DAY, 0)
    assert await q.counts() == {}


async def test_the_log_tells_which_time_was_missed(q: Desk) -> None:
    at = q.clock.now_ms
    await q.store.put_schedule(nightly(q), next_ms=at)
    skips = [
        fire(q, at, at + 1, skipped=True),
        fire(q, at + 1, at + 2, skipped=True, missed=True),
        fire(q, at + 2, at + DAY),
    ]
    assert await q.store.fire(skips) == [True] * 3
    (missed,) = [event for event in await q.events() if event.kind is QueueKind.MISSED]
    assert (missed.reason, missed.job, missed.shard) == (f"nightly@{at + 1}", "", 0)


async def test_a_skip_that_comes_too_late_is_not_logged(q: Desk) -> None:
    at = q.clock.now_ms
    await q.store.put_schedule(nightly(q), next_ms=at)
    await q.store.fire([fire(q, at, at + DAY)])
    late = fire(q, at, at + DAY, skipped=True, missed=True)
    assert await q.store.fire([late]) == [False]
    assert not [event for event in await q.events() if event.kind is QueueKind.MISSED]


async def test_several_missed_times_can_be_fired_in_one_call(q: Desk) -> None:
    at = q.clock.now_ms
    await q.store.put_schedule(nightly(q), next_ms=at)
    fires = [fire(q, at, at + 1, skipped=True), fire(q, at + 1, at + 2), fire(q, at + 2, at + DAY)]
    assert await q.store.fire(fires) == [True, True, True]
    assert (await only(q)).fired == 2
    assert await q.claim_ids() == [f"nightly@{at + 1}", f"nightly@{at + 2}"]


async def test_the_same_spec_again_keeps_its_count_and_its_next_time(q: Desk) -> None:
    at = q.clock.now_ms
    await q.store.put_schedule(nightly(q), next_ms=at)
    await q.store.fire([fire(q, at, at + DAY)])
    record = await q.store.put_schedule(nightly(q), next_ms=at + HOUR)
    assert (record.next_ms, record.fired) == (at + DAY, 1)
    assert await only(q) == record


@pytest.mark.parametrize("what", ["cron", "template"])
async def test_another_spec_starts_the_schedule_over(q: Desk, what: str) -> None:
    at = q.clock.now_ms
    await q.store.put_schedule(nightly(q), next_ms=at)
    await q.store.fire([fire(q, at, at + DAY)])
    changed = (
        nightly(q, cron="0 7 * * *")
        if what == "cron"
        else nightly(q, template=q.spec("ignored", name="other"))
    )
    record = await q.store.put_schedule(changed, next_ms=at + HOUR)
    assert (record.spec, record.next_ms, record.fired) == (changed, at + HOUR, 0)
    assert len(await q.store.list_schedules(q.queue)) == 1


async def test_a_fire_planned_for_the_old_spec_does_nothing(q: Desk) -> None:
    at = q.clock.now_ms
    await q.store.put_schedule(nightly(q), next_ms=at)
    await q.store.put_schedule(nightly(q, cron="0 7 * * *"), next_ms=at + HOUR)
    assert await q.store.fire([fire(q, at, at + DAY)]) == [False]


async def test_a_dropped_schedule_leaves_its_jobs(q: Desk) -> None:
    at = q.clock.now_ms
    await q.store.put_schedule(nightly(q), next_ms=at)
    await q.store.fire([fire(q, at, at + DAY)])
    assert await q.store.drop_schedule(q.queue, "nightly")
    assert not await q.store.drop_schedule(q.queue, "nightly")
    assert await q.store.list_schedules(q.queue) == []
    assert await q.store.fire([fire(q, at + DAY, None)]) == [False]
    assert len(await q.claim_ids()) == 1


async def test_a_paused_schedule_is_not_due_and_does_not_fire(q: Desk) -> None:
    at = q.clock.now_ms
    await q.store.put_schedule(nightly(q), next_ms=at)
    assert await q.store.pause_schedule(q.queue, "nightly", paused=True) == "done"
    assert await q.store.pause_schedule(q.queue, "nightly", paused=True) == "late"
    assert (await only(q)).paused
    assert await q.store.list_schedules(q.queue, due=True) == []
    assert await q.store.fire([fire(q, at, at + DAY)]) == [False]
    assert await q.store.pause_schedule(q.queue, "nightly", paused=False) == "done"
    assert await q.store.pause_schedule(q.queue, "nightly", paused=False) == "late"
    assert await q.store.fire([fire(q, at, at + DAY)]) == [True]
    assert await q.store.pause_schedule(q.queue, "nobody", paused=True) == "missing"


async def test_the_same_spec_again_keeps_a_paused_schedule_paused(q: Desk) -> None:
    await q.store.put_schedule(nightly(q), next_ms=q.clock.now_ms)
    await q.store.pause_schedule(q.queue, "nightly", paused=True)
    assert (await q.store.put_schedule(nightly(q), next_ms=q.clock.now_ms)).paused


async def test_a_schedule_that_is_over_has_no_next_time(q: Desk) -> None:
    at = q.clock.now_ms
    await q.store.put_schedule(nightly(q, limit=1), next_ms=at)
    await q.store.fire([fire(q, at, None)])
    q.clock.advance(10 * DAY)
    assert (await only(q)).next_ms is None
    assert await q.store.list_schedules(q.queue, due=True) == []


@pytest.mark.parametrize("end", ["completed", "failed", "cancelled"])
async def test_an_after_complete_schedule_counts_from_the_end_of_its_job(q: Desk, end: str) -> None:
    at = q.clock.now_ms
    await q.store.put_schedule(every(q, after_complete=True), next_ms=at)
    assert await q.store.fire([fire(q, at, None, "often")]) == [True]
    q.clock.advance(HOUR)
    assert await q.store.list_schedules(q.queue, due=True) == []
    if end == "cancelled":
        await q.alter(Cancel(job=q.key(f"often@{at}")))
    else:
        lease = await q.take()
        assert (await only(q, "often")).next_ms is None
        await q.settle(complete(lease) if end == "completed" else fail(lease))
    assert (await only(q, "often")).next_ms == q.clock.now_ms + 10 * SECOND


async def test_another_job_does_not_set_off_an_after_complete_schedule(q: Desk) -> None:
    at = q.clock.now_ms
    await q.store.put_schedule(every(q, after_complete=True), next_ms=at)
    await q.store.fire([fire(q, at, None, "often")])
    await q.put_one("high", priority=9)
    lease = await q.take()
    assert lease.id == "high"
    await q.settle(complete(lease))
    assert (await only(q, "often")).next_ms is None


async def test_a_unique_hit_counts_as_fired(q: Desk) -> None:
    at = q.clock.now_ms
    template: JobSpec = q.spec("ignored", unique=UniqueSpec(lock="L"))
    await q.store.put_schedule(nightly(q, template=template), next_ms=at)
    await q.put_one("holder", unique=UniqueSpec(lock="L"))
    assert await q.store.fire([fire(q, at, at + DAY)]) == [True]
    record = await only(q)
    assert (record.fired, record.next_ms) == (1, at + DAY)
    assert await q.counts() == {"waiting": 1}


async def test_schedules_go_on_while_their_queue_is_paused(q: Desk) -> None:
    at = q.clock.now_ms
    await q.store.put_schedule(nightly(q), next_ms=at)
    await q.store.pause(q.queue)
    assert [s.spec.id for s in await q.store.list_schedules(q.queue, due=True)] == ["nightly"]
    assert await q.store.fire([fire(q, at, at + DAY)]) == [True]
    assert await q.counts() == {"waiting": 1}


async def test_a_fire_wakes_a_sleeper(q: Desk) -> None:
    at = q.clock.now_ms
    await q.store.put_schedule(nightly(q), next_ms=at)
    assert await q.claim() == []
    sleeping = asyncio.create_task(
        q.store.sleep([q.queue], worker="w1", slots=1, timeout_ms=10_000)
    )
    await asyncio.sleep(0)
    await q.store.fire([fire(q, at, at + DAY)])
    assert await sleeping


async def test_listing_schedules_is_bounded(q: Desk) -> None:
    for n in range(5):
        await q.store.put_schedule(nightly(q, f"s{n}"), next_ms=q.clock.now_ms)
    assert len(await q.store.list_schedules(q.queue, limit=3)) == 3
    assert len(await q.store.list_schedules(q.queue, due=True, limit=3)) == 3


async def test_due_schedules_of_one_queue_are_listed_however_many_others_are_due(q: Desk) -> None:
    beside = q.beside("other")
    for n in range(5):
        await q.store.put_schedule(nightly(beside, f"s{n}"), next_ms=q.clock.now_ms - HOUR)
    await q.store.put_schedule(nightly(q), next_ms=q.clock.now_ms)
    assert [s.spec.id for s in await q.store.list_schedules(q.queue, due=True, limit=3)] == [
        "nightly"
    ]


async def test_a_paused_schedule_that_is_changed_stays_paused(q: Desk) -> None:
    await q.store.put_schedule(nightly(q), next_ms=q.clock.now_ms)
    await q.store.pause_schedule(q.queue, "nightly", paused=True)
    record = await q.store.put_schedule(nightly(q, cron="0 7 * * *"), next_ms=q.clock.now_ms)
    assert record.paused
    assert await q.store.list_schedules(q.queue, due=True) == []


async def test_schedules_of_one_id_in_two_queues_are_two(q: Desk) -> None:
    beside = q.beside("other")
    at = q.clock.now_ms
    await q.store.put_schedule(nightly(q), next_ms=at)
    await q.store.put_schedule(nightly(beside), next_ms=at)
    await q.store.fire([fire(q, at, at + DAY)])
    assert (await only(beside)).next_ms == at
    assert await beside.counts() == {}


async def test_obliterating_a_queue_forgets_its_schedules(q: Desk) -> None:
    await q.store.put_schedule(nightly(q), next_ms=q.clock.now_ms)
    await q.put("a")
    assert await q.store.obliterate(q.queue)
    assert await q.store.list_schedules(q.queue) == []


async def test_the_record_of_a_job_names_its_schedule(q: Desk) -> None:
    at = q.clock.now_ms
    await q.store.put_schedule(every(q), next_ms=at)
    for n in range(3):
        await q.store.fire([fire(q, at + n, at + n + 1, "often")])
    assert [r.schedule for r in await read_all(q.store, q.queue, State.WAITING)] == ["often"] * 3
