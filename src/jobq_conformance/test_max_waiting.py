"""`max_waiting`: a full queue refuses new jobs, and never work that was accepted before."""

from __future__ import annotations

import pytest

from jobq.core.records.commands import Cancel, Rerun
from jobq.core.records.jobs import JobRecord, PutResult, UniqueMode
from jobq.core.records.queues import Limits, QueueConfig
from jobq.core.records.states import State
from jobq.errors import ConfigError
from jobq_conformance.bounded import bound, lock, put, rebound, took
from jobq_conformance.kit import (
    HOUR,
    LEASE,
    MINUTE,
    SECOND,
    Desk,
    block,
    complete,
    fail,
    release,
    retry,
    snooze,
)
from jobq_conformance.roles import needs

pytestmark = needs("limits")


# ── what counts ───────────────────────────────────────────────────────────────────────────────────


async def test_what_exceeds_the_number_is_refused_and_not_stored(q: Desk) -> None:
    await bound(q, 2)
    results = await q.put("a", "b", "c", "d")
    assert took(results) == "jjFF"
    assert results[2] == PutResult(id="c", life=0, state=None, full=2)
    assert await q.look("c") is None
    assert await q.events("c") == []
    assert await q.counts() == {"waiting": 2}


async def test_waiting_delayed_and_blocked_jobs_count_and_active_and_ended_ones_do_not(
    q: Desk,
) -> None:
    await bound(q, 3)
    await q.put_one("waiting")
    await q.put_one("delayed", delay_ms=HOUR)
    await q.put_one("blocked", after=(q.edge("waiting"),))
    assert await put(q, "more") == "F"
    lease = await q.take()
    assert await put(q, "more") == "j"
    assert await put(q, "another") == "F"
    await q.settle(
        complete(lease)
    )  # which unblocks the one that waited for it: it counts as before
    assert await put(q, "another") == "F"
    await q.alter(Cancel(job=q.key("delayed")))
    assert await put(q, "another") == "j"


@pytest.mark.parametrize(
    "options",
    [{}, {"delay_ms": HOUR}, {"priority": 3}, {"lifo": True}, {"ttl_ms": HOUR}, {"given_id": True}],
    ids=str,
)
async def test_every_kind_of_job_needs_a_place(q: Desk, options: dict[str, object]) -> None:
    await bound(q, 1)
    assert await put(q, "a", "b", **options) == "jF"
    assert await put(q, "c", **options) == "F"


async def test_keyed_jobs_share_the_number_of_their_queue(q: Desk) -> None:
    await bound(q, 2)
    assert (
        took(await q.store.put([q.spec("a", key="x"), q.spec("b", key="y"), q.spec("c", key="z")]))
        == "jjF"
    )
    (lease,) = await q.claim()
    assert await put(q, "d", key="z") == "j"
    await q.settle(complete(lease))


async def test_a_batch_that_fits_goes_in_whole(q: Desk) -> None:
    await bound(q, 2_000)
    ids = [f"j{n:04}" for n in range(2_500)]
    assert took(await q.put(*ids[:1_500])) == "j" * 1_500
    assert took(await q.put(*ids[1_500:])) == "j" * 500 + "F" * 500
    assert await q.counts() == {"waiting": 2_000}


async def test_a_full_queue_does_not_concern_another_one_of_the_same_call(q: Desk) -> None:
    beside = q.beside("other")
    await bound(q, 1)
    results = await q.store.put([q.spec("a"), beside.spec("a"), q.spec("b"), beside.spec("b")])
    assert took(results) == "jjFj"
    assert [r.id for r in results] == ["a", "a", "b", "b"]


# ── duplicates ────────────────────────────────────────────────────────────────────────────────────


async def test_duplicates_pass(q: Desk) -> None:
    await bound(q, 1)
    assert await put(q, "a") == "j"
    (again, other) = await q.put("a", "b")
    assert took([again, other]) == "dF"
    assert isinstance(again.found, JobRecord)
    assert again.state is State.WAITING


async def test_a_duplicate_in_the_middle_of_a_batch_takes_no_place(q: Desk) -> None:
    await bound(q, 3)
    assert await put(q, "a") == "j"
    assert await put(q, "b", "a", "b", "c", "a", "d") == "jddjdF"


@pytest.mark.parametrize("mode", ["simple", "throttle", "debounce", "keep_last"])
async def test_a_unique_duplicate_passes(q: Desk, mode: UniqueMode) -> None:
    await bound(q, 1)
    unique = lock(mode, HOUR if mode == "throttle" else None)
    assert await put(q, "a", unique=unique) == "j"
    (again,) = await q.put("b", unique=unique, payload=b"[[2],{}]")
    assert (again.id, took([again])) == ("a", "d")
    assert await put(q, "c") == "F"
    if mode in ("debounce", "keep_last"):
        assert (await q.get("a")).payload == b"[[2],{}]"


async def test_a_debounced_job_whose_holder_has_started_is_a_new_job_and_needs_a_place(
    q: Desk,
) -> None:
    await bound(q, 1)
    await q.put_one("a", unique=lock("debounce"))
    lease = await q.take()
    await q.put_one("full")
    assert await put(q, "b", unique=lock("debounce")) == "F"
    assert await q.look("b") is None
    await q.settle(complete(lease))


async def test_a_refused_unique_job_takes_no_lock(q: Desk) -> None:
    await bound(q, 1)
    assert await put(q, "a") == "j"
    assert await put(q, "b", unique=lock()) == "F"
    await q.settle(complete(await q.take()))
    assert await put(q, "c", unique=lock()) == "j"


async def test_the_record_of_a_cancelled_id_stays_when_its_next_life_is_refused(q: Desk) -> None:
    await bound(q, 1)
    await q.put_one("a")
    await q.alter(Cancel(job=q.key("a")))
    await q.put_one("b")
    assert await put(q, "a") == "F"
    assert (await q.get("a")).state is State.CANCELLED
    await q.settle(complete(await q.take()))
    (result,) = await q.put("a")
    assert (result.life, took([result])) == (1, "j")


# ── what comes back ───────────────────────────────────────────────────────────────────────────────


async def test_what_comes_back_is_never_refused(q: Desk) -> None:
    await bound(q, 1)
    ids = ["retried", "delayed", "released", "snoozed", "stalled", "blocked"]
    leases = []
    for id in ids:
        await q.put_one(id)
        leases.append(await q.take())
    await q.put_one("full")
    retried, delayed, released, snoozed, _, blocked = leases
    await q.settle(
        retry(retried),
        retry(delayed, MINUTE),
        release(released),
        snooze(snoozed, MINUTE),
        block(blocked, signal="go"),
    )
    q.clock.advance(LEASE + SECOND)
    await q.tick()
    assert await q.states(*ids) == [
        "waiting",
        "delayed",
        "waiting",
        "delayed",
        "waiting",
        "blocked",
    ]
    assert await put(q, "more") == "F"
    q.clock.advance(MINUTE)
    assert len(await q.claim_ids()) == 6
    assert await put(q, "more") == "F"  # the blocked one still waits


async def test_a_rerun_is_never_refused(q: Desk) -> None:
    await bound(q, 1)
    await q.run("a")
    await q.put_one("b")
    assert await q.alter(Rerun(job=q.key("a")))
    assert await q.counts() == {"waiting": 2}
    assert await put(q, "c") == "F"


async def test_the_follow_up_of_a_running_keep_last_job_is_never_refused(q: Desk) -> None:
    await bound(q, 1)
    await q.put_one("a", unique=lock("keep_last"))
    lease = await q.take()
    await q.put_one("full")
    (follow_up,) = await q.put("b", unique=lock("keep_last"), payload=b"[[1],{}]")
    assert (took([follow_up]), follow_up.state) == ("j", State.BLOCKED)
    assert await put(q, "c", unique=lock("keep_last"), payload=b"[[2],{}]") == "d"
    await q.settle(complete(lease))
    assert await q.claim_ids() == ["full", "b"]
    assert (await q.get("b")).payload == b"[[2],{}]"


async def test_a_dead_letter_is_never_refused(q: Desk) -> None:
    dead = q.beside("dead")
    await bound(dead, 1)
    await q.store.declare(q.queue, QueueConfig(dead_letters="dead"))
    await q.put("a", "b")
    for lease in await q.claim(2):
        await q.settle(fail(lease))
    await q.tick()
    assert await dead.counts() == {"waiting": 2}
    assert await put(dead, "c") == "F"


# ── limits like the others ────────────────────────────────────────────────────────────────────────


async def test_a_bound_below_what_is_there_removes_nothing(q: Desk) -> None:
    await q.put("a", "b", "c")
    await bound(q, 1)
    assert await put(q, "d") == "F"
    assert await put(q, "a") == "d"
    for _ in range(2):
        await q.settle(complete(await q.take()))
        assert await put(q, "d") == "F"
    await q.settle(complete(await q.take()))
    assert await put(q, "d", "e") == "jF"


async def test_it_can_be_changed_removed_and_reset_at_run_time(q: Desk) -> None:
    await bound(q, 1)
    assert await put(q, "a", "b") == "jF"
    await rebound(q, 2)
    assert await put(q, "b", "c") == "jF"
    await rebound(q, None)
    assert await put(q, "c", "d") == "jj"
    await q.store.set_limits(q.queue, None)
    assert await put(q, "e") == "F"
    (record,) = await q.store.queues(q.queue.tenant)
    assert record.limits.declared == Limits(max_waiting=1)
    assert record.limits.changed is None


async def test_another_number_needs_a_higher_version(q: Desk) -> None:
    await bound(q, 1)
    with pytest.raises(ConfigError, match="limits_version"):
        await bound(q, 2)
    await bound(q, 2, version=2)
    assert await put(q, "a", "b", "c") == "jjF"


async def test_purging_makes_room(q: Desk) -> None:
    await bound(q, 2)
    await q.put_one("a")
    await q.put_one("b", delay_ms=HOUR)
    assert await put(q, "c") == "F"
    assert await q.store.purge_pending(q.queue) == 1
    assert await put(q, "c", "d") == "jF"
    assert await q.store.purge_pending(q.queue, delayed=True) == 2
    assert await put(q, "d", "e", "f") == "jjF"


async def test_an_obliterated_queue_has_no_bound(q: Desk) -> None:
    await bound(q, 1)
    await q.put_one("a")
    assert await q.store.obliterate(q.queue)
    assert await put(q, "a", "b") == "jj"
