"""`max_waiting` with jobs that wait for each other, flows and schedules."""

from __future__ import annotations

import pytest

from jobq.core.records.queues import Fire, ScheduleSpec
from jobq.core.records.states import QueueKind, State
from jobq.errors import InvalidJob, QueueFull
from jobq_conformance.bounded import bound, lock, put, rebound, took
from jobq_conformance.kit import (
    HOUR,
    MINUTE,
    Desk,
    complete,
)
from jobq_conformance.roles import needs

pytestmark = needs("limits")


# ── jobs that wait for each other ─────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("order", ["child first", "parent first"])
async def test_jobs_of_one_call_that_wait_for_each_other_go_in_together_or_not_at_all(
    q: Desk, order: str
) -> None:
    await bound(q, 2)
    await q.put_one("a")
    specs = [q.spec("child"), q.spec("parent", after=(q.edge("child"),))]
    if order == "parent first":
        specs.reverse()
    assert took(await q.store.put(specs)) == "FF"
    assert await q.counts() == {"waiting": 1}
    await q.settle(complete(await q.take()))
    assert took(await q.store.put(specs)) == "jj"
    assert await q.states("child", "parent") == ["waiting", "blocked"]


async def test_the_same_over_two_queues(q: Desk) -> None:
    beside = q.beside("other")
    await bound(beside, 1)
    await beside.put_one("full")
    specs = [beside.spec("child"), q.spec("parent", after=(beside.edge("child"),))]
    assert took(await q.store.put(specs)) == "FF"
    assert await q.counts() == {}
    await beside.settle(complete(await beside.take()))
    assert took(await q.store.put(specs)) == "jj"


async def test_a_job_that_waits_for_one_that_is_there_is_judged_for_itself(q: Desk) -> None:
    await bound(q, 2)
    await q.put_one("a")
    results = await q.store.put(
        [q.spec("b", after=(q.edge("a"),)), q.spec("c", after=(q.edge("a"),))]
    )
    assert took(results) == "jF"
    assert results[0].state is State.BLOCKED


# ── flows ─────────────────────────────────────────────────────────────────────────────────────────


async def test_a_flow_that_does_not_fit_is_not_submitted(q: Desk) -> None:
    await bound(q, 2)
    specs = [q.spec("a"), q.spec("b"), q.spec("c", after=(q.edge("a"), q.edge("b")))]
    with pytest.raises(QueueFull, match="'work' is full: max_waiting=2 limits") as error:
        await q.store.put(specs, flow="f")
    assert (error.value.queue, error.value.max_waiting) == ("work", 2)
    assert await q.counts() == {}
    await q.tick()
    assert await put(q, "a", "b", "c") == "jjF"  # it left no place taken


async def test_a_flow_that_fits_exactly_is_submitted(q: Desk) -> None:
    await bound(q, 3)
    specs = [q.spec("a"), q.spec("b"), q.spec("c", after=(q.edge("a"), q.edge("b")))]
    assert took(await q.store.put(specs, flow="f")) == "jjj"
    assert await put(q, "d") == "F"
    await q.settle(*(complete(lease) for lease in await q.claim(2)))
    assert await put(q, "d", "e", "f") == "jjF"


async def test_a_flow_has_its_places_from_when_it_is_staged(q: Desk) -> None:
    await bound(q, 3)
    await q.store.put([q.spec("a"), q.spec("b")], flow="f", last=False)
    assert await put(q, "x", "y") == "jF"
    with pytest.raises(QueueFull):
        await q.store.put([q.spec("other")], flow="another")
    await q.settle(complete(await q.take()))
    await q.store.put([q.spec("c", after=(q.edge("a"),))], flow="f")
    assert await q.counts() == {"waiting": 2, "blocked": 1, "completed": 1}
    assert await put(q, "y") == "F"


async def test_a_call_that_does_not_fit_discards_its_flow(q: Desk) -> None:
    await bound(q, 3)
    await q.store.put([q.spec("a"), q.spec("b")], flow="f", last=False)
    with pytest.raises(QueueFull):
        await q.store.put([q.spec("c"), q.spec("d")], flow="f")
    assert await put(q, "x", "y", "z", "w") == "jjjF"
    assert await q.states("a", "b", "c", "d") == [None] * 4


async def test_any_refusal_of_a_call_gives_the_places_of_its_flow_back(q: Desk) -> None:
    await bound(q, 3)
    await q.store.put([q.spec("a"), q.spec("b")], flow="f", last=False)
    with pytest.raises(InvalidJob):
        await q.store.put([q.spec("c", after=(q.edge("nobody"),))], flow="f")
    assert await put(q, "x", "y", "z", "w") == "jjjF"


async def test_staging_the_same_members_again_takes_no_more_places(q: Desk) -> None:
    await bound(q, 3)
    for _ in range(3):
        await q.store.put([q.spec("a"), q.spec("b")], flow="f", last=False)
    assert await put(q, "x", "y") == "jF"
    await q.settle(complete(await q.take()))
    await q.store.put([q.spec("a"), q.spec("c")], flow="f")
    assert await q.counts() == {"waiting": 3, "completed": 1}
    assert await put(q, "y") == "F"


async def test_the_sweep_of_an_unfinished_flow_gives_its_places_back(q: Desk) -> None:
    await bound(q, 2)
    await q.store.put([q.spec("a"), q.spec("b")], flow="f", last=False)
    assert await put(q, "x") == "F"
    q.clock.advance(2 * HOUR)
    await q.tick()
    assert await put(q, "x", "y", "z") == "jjF"


async def test_members_that_are_there_already_take_no_place(q: Desk) -> None:
    await bound(q, 2)
    await q.put("a", "b")
    with pytest.raises(QueueFull):
        await q.store.put([q.spec("a"), q.spec("c", after=(q.edge("a"),))], flow="f")
    await q.settle(complete(await q.take()))
    results = await q.store.put([q.spec("b"), q.spec("c", after=(q.edge("b"),))], flow="g")
    assert took(results) == "dj"
    assert await put(q, "d") == "F"
    await q.settle(complete(await q.take()))
    assert await put(q, "d", "e") == "jF"


async def test_a_flow_over_two_queues_goes_in_whole_or_not_at_all(q: Desk) -> None:
    beside = q.beside("other")
    await bound(q, 5)
    await bound(beside, 1)
    await beside.put_one("full")
    specs = [q.spec("a"), beside.spec("b", after=(q.edge("a"),))]
    with pytest.raises(QueueFull, match="'other' is full"):
        await q.store.put(specs, flow="f")
    assert await put(q, *"abcdef") == "jjjjjF"


async def test_a_limit_set_while_a_flow_is_made_finds_its_members_counted(q: Desk) -> None:
    await q.store.put([q.spec("a"), q.spec("b")], flow="f", last=False)
    await bound(q, 3)
    assert await put(q, "x", "y") == "jF"
    await rebound(q, 1)
    await q.store.put([q.spec("a")], flow="f")  # staged before: nothing new, and submitted
    assert await q.counts() == {"waiting": 3}


# ── schedules ─────────────────────────────────────────────────────────────────────────────────────


async def test_a_schedule_that_finds_the_queue_full_has_fired_without_a_job(q: Desk) -> None:
    await bound(q, 1)
    at = q.clock() + MINUTE
    spec = ScheduleSpec(queue=q.queue, id="nightly", template=q.spec("nightly"), every_ms=MINUTE)
    await q.store.put_schedule(spec, next_ms=at)
    await q.put_one("full")
    q.clock.advance(MINUTE)
    fire = Fire(queue=q.queue, schedule="nightly", at_ms=at, next_ms=at + MINUTE)
    assert await q.store.fire([fire]) == [True]
    assert await q.look(f"nightly@{at}") is None
    (record,) = await q.store.list_schedules(q.queue)
    assert (record.next_ms, record.fired, record.last_ms) == (at + MINUTE, 1, at)
    assert await q.store.fire([fire]) == [False]
    q.clock.advance(MINUTE)
    await q.settle(complete(await q.take()))
    assert await q.store.fire(
        [Fire(queue=q.queue, schedule="nightly", at_ms=at + MINUTE, next_ms=at + 2 * MINUTE)]
    ) == [True]
    assert await q.claim_ids() == [f"nightly@{at + MINUTE}"]


async def test_an_after_complete_schedule_goes_on_when_it_finds_the_queue_full(q: Desk) -> None:
    await bound(q, 1)
    at = q.clock()
    spec = ScheduleSpec(
        queue=q.queue, id="s", template=q.spec("s"), every_ms=MINUTE, after_complete=True
    )
    await q.store.put_schedule(spec, next_ms=at)
    await q.put_one("full")
    assert await q.store.fire([Fire(queue=q.queue, schedule="s", at_ms=at, next_ms=None)]) == [True]
    (record,) = await q.store.list_schedules(q.queue)
    assert record.next_ms == at + MINUTE


async def test_two_handles_share_the_number(q_twice: tuple[Desk, Desk]) -> None:
    first, second = q_twice
    await bound(first, 2)
    assert await put(first, "a") == "j"
    assert await put(second, "b", "c") == "jF"
    assert await put(first, "c") == "F"


async def test_the_log_tells_which_time_of_a_schedule_was_missed(q: Desk) -> None:
    await bound(q, 1)
    at = q.clock()
    await q.store.put_schedule(
        ScheduleSpec(queue=q.queue, id="s", template=q.spec("s"), every_ms=MINUTE), next_ms=at
    )
    await q.put_one("full")
    assert await q.store.fire(
        [Fire(queue=q.queue, schedule="s", at_ms=at, next_ms=at + MINUTE)]
    ) == [True]
    (missed,) = [event for event in await q.events() if event.kind is QueueKind.MISSED]
    assert (missed.reason, missed.job, missed.shard) == (f"s@{at}", "", 0)


async def test_a_unique_hit_of_a_schedule_is_not_missed(q: Desk) -> None:
    await bound(q, 1)
    at = q.clock()
    template = q.spec("s", unique=lock())
    await q.store.put_schedule(
        ScheduleSpec(queue=q.queue, id="s", template=template, every_ms=MINUTE), next_ms=at
    )
    await q.put_one("holder", unique=lock())
    assert await q.store.fire(
        [Fire(queue=q.queue, schedule="s", at_ms=at, next_ms=at + MINUTE)]
    ) == [True]
    assert not [event for event in await q.events() if event.kind is QueueKind.MISSED]


async def test_a_member_that_a_call_names_twice_takes_one_place(q: Desk) -> None:
    await bound(q, 2)
    await q.store.put([q.spec("a"), q.spec("a")], flow="f")
    await q.settle(complete(await q.take()))
    assert await put(q, "b", "c", "d") == "jjF"
