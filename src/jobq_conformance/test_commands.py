"""Commands on single jobs: rerun, promote, reprioritise, reschedule, update, remove."""

from __future__ import annotations

import pytest

from jobq.core.records.commands import (
    Cancel,
    Promote,
    Remove,
    Reprioritise,
    Rerun,
    Reschedule,
    Update,
)
from jobq.core.records.jobs import UniqueSpec
from jobq.core.records.states import State
from jobq_conformance.kit import DAY, SECOND, Desk, complete, fail, ref, retry
from jobq_conformance.roles import needs

pytestmark = needs("operators", "delays", "priorities")


async def ended(q: Desk, id: str, state: State) -> None:
    """A job that ended in `state` after one failed run."""
    await q.put_one(id)
    await q.settle(retry(await q.take()))
    lease = await q.take()
    if state is State.CANCELLED:
        await q.alter(Cancel(job=q.key(id)))
    await q.settle(complete(lease) if state is State.COMPLETED else fail(lease))
    assert await q.state(id) is state


# ── rerun ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("state", [State.COMPLETED, State.FAILED, State.CANCELLED])
async def test_any_ended_job_runs_again_from_the_start(q: Desk, state: State) -> None:
    await ended(q, "a", state)
    assert await q.alter(Rerun(job=q.key("a")))
    record = await q.get("a")
    assert (record.state, record.life, record.failures, record.stalls, record.attempt) == (
        State.WAITING,
        1,
        0,
        0,
        2,
    )
    assert (record.result, record.finished_ms, record.cancel_asked) == (None, None, False)
    lease = await q.take()
    assert (lease.life, lease.attempt, lease.failures, lease.cancel_asked) == (1, 3, 0, False)
    await q.settle(complete(lease, b"2"))
    assert (await q.get("a")).result == b"2"


async def test_an_unfinished_or_unknown_job_cannot_be_rerun(q: Desk) -> None:
    await q.put("active", "waiting")
    await q.put_one("delayed", delay_ms=DAY)
    await q.take()
    commands = [Rerun(job=q.key(id)) for id in ("active", "waiting", "delayed", "nobody")]
    assert await q.store.alter(commands) == ["late"] * 3 + ["missing"]


async def test_a_rerun_has_all_its_stalls_again(q: Desk) -> None:
    await q.put_one("a", max_stalls=0)
    await q.take(lease_ms=SECOND)
    q.clock.advance(2 * SECOND)
    await q.tick()
    assert await q.alter(Rerun(job=q.key("a")))
    lease = await q.take()
    assert lease.stalls == 0
    await q.settle(complete(lease))


async def test_a_rerun_goes_to_the_back(q: Desk) -> None:
    await q.run("a")
    await q.put("b")
    await q.alter(Rerun(job=q.key("a")))
    assert await q.claim_ids() == ["b", "a"]


async def test_a_rerun_repeated_acts_once(q: Desk) -> None:
    await q.run("a")
    assert await q.store.alter([Rerun(job=q.key("a")), Rerun(job=q.key("a"))]) == ["done", "late"]
    assert (await q.get("a")).life == 1


async def test_a_rerun_job_is_not_removed_by_the_retention_of_its_last_life(q: Desk) -> None:
    await q.run("a", result_ttl_ms=10 * SECOND)
    await q.alter(Rerun(job=q.key("a")))
    q.clock.advance(DAY)
    await q.tick()
    assert await q.state("a") is State.WAITING
    await q.settle(complete(await q.take()))
    q.clock.advance(9 * SECOND)
    assert await q.state("a") is State.COMPLETED
    q.clock.advance(2 * SECOND)
    assert await q.look("a") is None


async def test_a_job_whose_lock_is_anothers_cannot_be_rerun(q: Desk) -> None:
    lock = UniqueSpec(lock="L")
    await q.run("a", unique=lock)
    await q.put_one("b", unique=lock)
    assert await q.altered(Rerun(job=q.key("a"))) == "late"
    assert await q.state("a") is State.COMPLETED
    await q.settle(complete(await q.take()))
    assert await q.alter(Rerun(job=q.key("a")))


async def test_a_rerun_takes_its_lock_again(q: Desk) -> None:
    lock = UniqueSpec(lock="L")
    await q.run("a", unique=lock)
    await q.alter(Rerun(job=q.key("a")))
    result = await q.put_one("b", unique=lock)
    assert (result.id, result.duplicate) == ("a", True)
    await q.settle(complete(await q.take()))
    assert not (await q.put_one("b", unique=lock)).duplicate


# ── promote, reprioritise, reschedule, update ─────────────────────────────────────────────────────


async def test_a_promoted_job_is_waiting_now(q: Desk) -> None:
    await q.put_one("a", delay_ms=DAY)
    assert await q.alter(Promote(job=q.key("a")))
    record = await q.get("a")
    assert (record.state, record.due_ms) == (State.WAITING, q.clock.now_ms)
    assert await q.claim_ids() == ["a"]


async def test_only_a_delayed_job_can_be_promoted(q: Desk) -> None:
    await q.put("active", "waiting")
    await q.take()
    commands = [Promote(job=q.key(id)) for id in ("active", "waiting", "nobody")]
    assert await q.store.alter(commands) == ["late", "late", "missing"]


async def test_a_job_that_has_not_started_gets_a_new_priority(q: Desk) -> None:
    await q.put("a", "b")
    await q.put_one("c", delay_ms=SECOND)
    assert await q.store.alter(
        [Reprioritise(job=q.key(id), priority=p) for id, p in (("b", 2), ("c", 3))]
    ) == ["done", "done"]
    assert [(await q.get(id)).priority for id in ("a", "b", "c")] == [0, 2, 3]
    assert await q.states("b", "c") == ["waiting", "delayed"]
    event = await q.last_event("b")
    assert (event.kind, event.previous, event.state) == ("changed", State.WAITING, State.WAITING)
    q.clock.advance(SECOND)
    assert await q.claim_ids() == ["c", "b", "a"]


async def test_a_lower_priority_moves_a_job_back(q: Desk) -> None:
    await q.put("a", "b", priority=5)
    await q.put("c")
    await q.alter(Reprioritise(job=q.key("a"), priority=0))
    assert await q.claim_ids() == ["b", "c", "a"]


async def test_a_running_or_ended_job_keeps_its_priority(q: Desk) -> None:
    await q.run("done")
    await q.put("active")
    await q.take()
    commands = [Reprioritise(job=q.key(id), priority=1) for id in ("done", "active", "nobody")]
    assert await q.store.alter(commands) == ["late", "late", "missing"]
    assert (await q.get("active")).priority == 0


async def test_a_waiting_job_can_be_put_off(q: Desk) -> None:
    await q.put("a", "b")
    assert await q.alter(Reschedule(job=q.key("a"), delay_ms=5 * SECOND))
    record = await q.get("a")
    assert (record.state, record.due_ms) == (State.DELAYED, q.clock.now_ms + 5 * SECOND)
    assert await q.claim_ids() == ["b"]
    q.clock.advance(5 * SECOND)
    assert await q.claim_ids() == ["a"]


@pytest.mark.parametrize("begun", ["waiting", "delayed", "used again"])
@pytest.mark.parametrize("change", [Reprioritise, Reschedule])
async def test_a_job_that_left_its_place_runs_once(
    q: Desk, begun: str, change: type[Reprioritise | Reschedule]
) -> None:
    if begun == "used again":
        await q.put("a")
        await q.alter(Cancel(job=q.key("a")))
    await q.put_one("a", delay_ms=SECOND if begun == "delayed" else 0)
    if begun == "delayed":
        q.clock.advance(SECOND)
        await q.tick()
    others = [f"b{n}" for n in range(8)]
    await q.put(*others)
    if change is Reprioritise:
        await q.alter(Reprioritise(job=q.key("a"), priority=5))
    else:
        await q.alter(Reschedule(job=q.key("a"), delay_ms=SECOND))
        await q.alter(Promote(job=q.key("a")))
        await q.alter(Reprioritise(job=q.key("a"), priority=5))
    assert (await q.take()).id == "a"
    assert await q.claim_ids(worker="w2") == others
    assert await q.counts() == {"active": 9}


async def test_a_delayed_job_gets_another_time(q: Desk) -> None:
    await q.put_one("a", delay_ms=DAY)
    await q.put_one("b", delay_ms=SECOND)
    assert await q.alter(Reschedule(job=q.key("a"), delay_ms=SECOND))
    assert await q.alter(Reschedule(job=q.key("b"), at_ms=q.clock.now_ms + DAY))
    assert await q.kinds("a") == ["accepted", "changed"]
    q.clock.advance(2 * SECOND)
    assert await q.claim_ids() == ["a"]
    q.clock.advance(DAY)
    assert "b" in await q.claim_ids()


async def test_a_running_or_ended_job_cannot_be_put_off(q: Desk) -> None:
    await q.run("done")
    await q.put("active")
    await q.take()
    commands = [Reschedule(job=q.key(id), delay_ms=SECOND) for id in ("done", "active", "nobody")]
    assert await q.store.alter(commands) == ["late", "late", "missing"]


async def test_new_arguments_reach_a_job_that_has_not_started(q: Desk) -> None:
    await q.put_one("a", payload=b"old")
    await q.put_one("b", payload=b"old", delay_ms=SECOND)
    commands = [Update(job=q.key(id), payload=b"new", codec="msgpack") for id in ("a", "b")]
    assert await q.store.alter(commands) == ["done", "done"]
    assert await q.states("a", "b") == ["waiting", "delayed"]
    q.clock.advance(SECOND)
    assert [(lease.id, lease.payload, lease.codec) for lease in await q.claim(2)] == [
        ("a", b"new", "msgpack"),
        ("b", b"new", "msgpack"),
    ]
    assert await q.kinds("a") == ["accepted", "changed", "started"]


async def test_new_arguments_do_not_reach_a_running_or_ended_job(q: Desk) -> None:
    await q.run("done")
    await q.put("active")
    await q.take()
    commands = [Update(job=q.key(id), payload=b"new") for id in ("done", "active", "nobody")]
    assert await q.store.alter(commands) == ["late", "late", "missing"]
    assert (await q.get("active")).payload == b"[[],{}]"


async def test_an_update_keeps_the_place_of_a_job(q: Desk) -> None:
    await q.put("a", "b")
    await q.alter(Update(job=q.key("a"), payload=b"new"))
    assert await q.claim_ids() == ["a", "b"]


# ── remove ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("state", [State.COMPLETED, State.FAILED, State.CANCELLED])
async def test_the_record_of_an_ended_job_goes(q: Desk, state: State) -> None:
    await ended(q, "a", state)
    assert await q.alter(Remove(job=q.key("a")))
    assert await q.look("a") is None
    assert await q.counts() == {}
    assert await q.altered(Remove(job=q.key("a"))) == "missing"


async def test_removing_an_unfinished_job_is_a_cancel_on_record(q: Desk) -> None:
    await q.put("waiting")
    await q.put_one("delayed", delay_ms=SECOND)
    for id in ("waiting", "delayed"):
        assert await q.alter(Remove(job=q.key(id)))
        event = await q.last_event(id)
        assert (event.kind, event.reason) == ("cancelled", "removed")
        record = await q.get(id)
        assert (record.state, record.reason) == (State.CANCELLED, "removed")
    q.clock.advance(2 * SECOND)
    assert await q.claim() == []


async def test_a_running_job_cannot_be_removed(q: Desk) -> None:
    await q.put("a")
    lease = await q.take()
    assert await q.altered(Remove(job=q.key("a"))) == "late"
    assert await q.store.extend([ref(lease)], lease_ms=SECOND) == ["held"]
