"""Unique jobs, flows and schedules together with other features."""

from __future__ import annotations

import pytest

from jobq.core.records.commands import Cancel, Rerun
from jobq.core.records.jobs import UniqueSpec
from jobq.core.records.queues import Fire, Limits, QueueConfig, ScheduleSpec, Tokens
from jobq.core.records.states import State
from jobq.errors import ConfigError, InvalidJob
from jobq_conformance.kit import (
    SECOND,
    Desk,
    complete,
    fail,
)

SIMPLE = UniqueSpec(lock="L")
DEBOUNCE = UniqueSpec(lock="L", mode="debounce")
KEEP_LAST = UniqueSpec(lock="L", mode="keep_last")


async def test_unique_and_keyed_a_lock_holds_over_all_keys(q: Desk) -> None:
    await q.put_one("a1", key="a", unique=SIMPLE)
    result = await q.put_one("b1", key="b", unique=SIMPLE)
    assert (result.id, result.duplicate) == ("a1", True)
    lease = await q.take()
    assert await q.claim() == []
    await q.settle(complete(lease))
    assert not (await q.put_one("b1", key="b", unique=SIMPLE)).duplicate
    assert await q.claim_ids() == ["b1"]


async def test_unique_and_keyed_a_duplicate_takes_no_slot_of_its_key(q: Desk) -> None:
    await q.put_one("a1", key="a", unique=SIMPLE)
    await q.put_one("a2", key="a", unique=SIMPLE)
    await q.put_one("a3", key="a")
    first = await q.take()
    await q.settle(complete(first))
    assert await q.claim_ids() == ["a3"]


async def test_keep_last_and_keyed_a_blocked_follow_up_does_not_hold_the_key(q: Desk) -> None:
    await q.put_one("a1", key="a", unique=KEEP_LAST)
    running = await q.take()
    await q.put_one("a2", key="a", unique=KEEP_LAST, payload=b"newest")
    await q.put_one("a3", key="a")
    settled = await q.exchange(complete(running), then=q.claiming(5))
    (lease,) = settled.leases
    await q.settle(complete(lease))
    assert {lease.id, *(await q.claim_ids())} == {"a2", "a3"}


async def test_keep_last_and_flow_a_follow_up_waits_for_its_children_too(q: Desk) -> None:
    await q.put_one("a1", unique=KEEP_LAST)
    running = await q.take()
    await q.put("child")
    await q.put_one("a2", unique=KEEP_LAST, after=(q.edge("child"),))
    await q.settle(complete(running))
    assert await q.state("a2") is State.BLOCKED
    await q.settle(complete(await q.take(), b"7"))
    lease = await q.take()
    assert (lease.id, [i.result for i in lease.inputs]) == ("a2", [b"7"])


async def test_keep_last_and_flow_children_do_not_release_a_follow_up_before_its_turn(
    q: Desk,
) -> None:
    await q.put_one("a1", unique=KEEP_LAST)
    running = await q.take()
    await q.put("child")
    await q.put_one("a2", unique=KEEP_LAST, after=(q.edge("child"),))
    await q.settle(complete(await q.take()))
    assert await q.state("a2") is State.BLOCKED
    await q.settle(complete(running))
    assert await q.state("a2") is State.WAITING


async def test_debounce_and_ordering_key_the_pending_one_does_not_hold_the_key(q: Desk) -> None:
    await q.put_one("a1", key="a", unique=DEBOUNCE, delay_ms=5 * SECOND, payload=b"1")
    await q.put_one("a2", key="a")
    q.clock.advance(4 * SECOND)
    await q.put_one("a3", key="a", unique=DEBOUNCE, delay_ms=5 * SECOND, payload=b"3")
    second = await q.take()
    assert second.id == "a2"
    q.clock.advance(5 * SECOND)
    assert await q.claim() == []  # due, and its key is taken
    await q.settle(complete(second))
    lease = await q.take()
    assert (lease.id, lease.payload) == ("a1", b"3")


async def test_debounce_and_ordering_key_order_is_that_of_becoming_waiting(q: Desk) -> None:
    await q.put_one("a1", key="a", unique=DEBOUNCE, delay_ms=SECOND)
    await q.put_one("a2", key="a", delay_ms=2 * SECOND)
    await q.put_one("a1b", key="a", unique=DEBOUNCE, delay_ms=3 * SECOND)
    q.clock.advance(5 * SECOND)
    order = []
    for _ in range(2):
        lease = await q.take()
        order.append(lease.id)
        await q.settle(complete(lease))
    assert order == ["a2", "a1"]


async def test_flow_and_unique_the_holder_of_a_lock_takes_the_place_of_a_member(q: Desk) -> None:
    await q.put_one("holder", unique=SIMPLE)
    answers = await q.store.put(
        [q.spec("member", unique=SIMPLE), q.spec("p", after=(q.edge("member"),))], flow="f1"
    )
    assert [(r.id, r.duplicate) for r in answers] == [("holder", True), ("p", False)]
    assert await q.state("p") is State.BLOCKED
    await q.settle(complete(await q.take(), b"7"))
    lease = await q.take()
    assert (lease.id, [i.result for i in lease.inputs]) == ("p", [b"7"])


async def test_flow_and_unique_results_come_under_the_ids_that_were_asked_for(q: Desk) -> None:
    locks = {id: UniqueSpec(lock=id) for id in ("one", "two")}
    for id, unique in locks.items():
        await q.put_one(f"holder of {id}", unique=unique)
    members = [q.spec(id, unique=unique) for id, unique in locks.items()]
    await q.store.put([*members, q.spec("p", after=(q.edge("one"), q.edge("two")))], flow="f1")
    await q.settle(*(complete(lease, lease.id.encode()) for lease in await q.claim(5)))
    lease = await q.take()
    found = [(i.job.id, i.result) for i in lease.inputs]
    assert (lease.id, found) == ("p", [("one", b"holder of one"), ("two", b"holder of two")])


async def test_flow_and_unique_id_an_id_used_by_two_flows_runs_once_for_both(q: Desk) -> None:
    for flow in ("f1", "f2"):
        await q.store.put(
            [q.spec("shared"), q.spec(f"{flow}/p", after=(q.edge("shared"),))], flow=flow
        )
    await q.settle(complete(await q.take(), b"7"))
    leases = await q.claim(5)
    assert [(lease.id, lease.inputs[0].result) for lease in leases] == [
        ("f1/p", b"7"),
        ("f2/p", b"7"),
    ]


async def test_flow_and_unique_a_blocked_job_holds_its_lock(q: Desk) -> None:
    await q.store.put([q.spec("a"), q.spec("p", unique=SIMPLE, after=(q.edge("a"),))])
    assert (await q.put_one("x", unique=SIMPLE)).id == "p"
    await q.settle(fail(await q.take()))
    assert await q.state("p") is State.FAILED
    assert not (await q.put_one("x", unique=SIMPLE)).duplicate


async def test_flow_and_cancelled_id_a_free_id_is_a_new_member(q: Desk) -> None:
    await q.put("a")
    await q.alter(Cancel(job=q.key("a")))
    answers = await q.store.put([q.spec("a"), q.spec("p", after=(q.edge("a"),))], flow="f1")
    assert [(r.id, r.duplicate, r.life) for r in answers] == [("a", False, 1), ("p", False, 0)]
    await q.settle(complete(await q.take()))
    assert await q.claim_ids() == ["p"]


async def test_schedule_and_unique_a_fire_after_the_lock_is_free_makes_its_job(q: Desk) -> None:
    at = q.clock.now_ms
    template = q.spec("ignored", unique=SIMPLE)
    spec = ScheduleSpec(queue=q.queue, id="s", template=template, every_ms=SECOND)
    await q.store.put_schedule(spec, next_ms=at)

    def fire(n: int) -> Fire:
        return Fire(
            queue=q.queue, schedule="s", at_ms=at + n * SECOND, next_ms=at + (n + 1) * SECOND
        )

    assert await q.store.fire([fire(0), fire(1)]) == [
        True,
        True,
    ]  # the second finds the first one's lock
    first = await q.take()
    assert await q.store.fire([fire(2)]) == [True]
    await q.settle(complete(first))
    assert await q.store.fire([fire(3)]) == [True]
    assert await q.claim_ids() == [f"s@{at + 3 * SECOND}"]
    assert [s.fired for s in await q.store.list_schedules(q.queue)] == [4]


async def test_schedule_and_keyed_a_fired_job_has_its_key(q: Desk) -> None:
    at = q.clock.now_ms
    await q.put_one("a", key="k")
    spec = ScheduleSpec(queue=q.queue, id="s", template=q.spec("ignored", key="k"), every_ms=SECOND)
    await q.store.put_schedule(spec, next_ms=at)
    await q.store.fire([Fire(queue=q.queue, schedule="s", at_ms=at, next_ms=None)])
    assert await q.claim_ids() == ["a"]


async def test_schedule_and_keyed_a_job_without_a_key_is_refused_and_its_time_stays_due(
    q: Desk,
) -> None:
    at = q.clock.now_ms
    await q.store.put_schedule(
        ScheduleSpec(queue=q.queue, id="s", template=q.spec("x"), every_ms=SECOND), next_ms=at
    )
    await q.put_one("a", key="k")
    with pytest.raises(ConfigError, match="no key"):
        await q.store.fire([Fire(queue=q.queue, schedule="s", at_ms=at, next_ms=at + SECOND)])
    (record,) = await q.store.list_schedules(q.queue, due=True)
    assert (record.fired, record.next_ms, await q.counts()) == (0, at, {"waiting": 1})
    assert await q.store.fire(
        [Fire(queue=q.queue, schedule="s", at_ms=at, next_ms=at + SECOND, skipped=True)]
    ) == [True]


async def test_schedule_and_rate_limit_a_job_that_could_never_start_is_refused(q: Desk) -> None:
    at = q.clock.now_ms
    await q.store.put_schedule(
        ScheduleSpec(queue=q.queue, id="s", template=q.spec("x", cost=5), every_ms=SECOND),
        next_ms=at,
    )
    await q.store.declare(q.queue, QueueConfig(limits=Limits(rate=Tokens(capacity=2, refill=1.0))))
    with pytest.raises(InvalidJob, match="costs 5"):
        await q.store.fire([Fire(queue=q.queue, schedule="s", at_ms=at, next_ms=at + SECOND)])
    assert await q.counts() == {}


async def test_unique_and_rerun_of_a_debounced_job(q: Desk) -> None:
    await q.put_one("a", unique=DEBOUNCE, delay_ms=SECOND)
    q.clock.advance(SECOND)
    await q.settle(fail(await q.take()))
    await q.put_one("b", unique=DEBOUNCE, delay_ms=SECOND)
    assert not await q.alter(Rerun(job=q.key("a")))
