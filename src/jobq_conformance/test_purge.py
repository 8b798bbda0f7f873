"""purge_pending, purge_ended, obliterate: many jobs at once, a bounded number per call."""

from __future__ import annotations

import pytest

from jobq.core.records.commands import Cancel
from jobq.core.records.jobs import UniqueSpec
from jobq.core.records.states import State
from jobq.errors import ConfigError
from jobq_conformance.kit import DAY, LEASE, SECOND, Desk, complete, fail, read_log, ref
from jobq_conformance.roles import needs

pytestmark = needs("operators")


async def test_clear_removes_what_waits(q: Desk) -> None:
    await q.put("active", "a", "b")
    lease = await q.take()
    await q.put_one("delayed", delay_ms=SECOND)
    assert await q.store.purge_pending(q.queue) == 2
    assert await q.states("active", "a", "b", "delayed") == [
        "active",
        "cancelled",
        "cancelled",
        "delayed",
    ]
    assert (await q.get("a")).reason == "removed"
    event = await q.last_event("a")
    assert (event.kind, event.reason, event.previous) == ("cancelled", "removed", State.WAITING)
    assert await q.claim() == []
    await q.settle(complete(lease))


async def test_clear_with_delayed_removes_all_that_has_not_started(q: Desk) -> None:
    lock = UniqueSpec(lock="L", mode="keep_last")
    await q.put_one("active", unique=lock)
    await q.take()
    await q.put_one("blocked", unique=lock)
    await q.put_one("delayed", delay_ms=SECOND)
    await q.put("waiting")
    assert await q.store.purge_pending(q.queue, delayed=True) == 3
    assert await q.counts() == {"active": 1, "cancelled": 3}


async def test_clear_is_bounded(q: Desk) -> None:
    await q.put(*(f"j{n}" for n in range(5)))
    assert [await q.store.purge_pending(q.queue, limit=2) for _ in range(4)] == [2, 2, 1, 0]


async def test_clear_releases_unique_locks(q: Desk) -> None:
    lock = UniqueSpec(lock="L")
    await q.put_one("a", unique=lock)
    await q.store.purge_pending(q.queue)
    assert not (await q.put_one("b", unique=lock)).duplicate


async def test_clear_leaves_other_queues_alone(q: Desk) -> None:
    beside = q.beside("other")
    await q.put("a")
    await beside.put("a")
    await q.store.purge_pending(q.queue, delayed=True)
    assert await beside.counts() == {"waiting": 1}


async def test_purge_ended_removes_ended_records_of_one_state(q: Desk) -> None:
    await q.run("done")
    await q.put("broken", "gone", "waiting")
    await q.settle(fail(await q.take()))
    await q.alter(Cancel(job=q.key("gone")))
    assert await q.store.purge_ended(q.queue, State.FAILED) == 1
    assert await q.states("done", "broken", "gone", "waiting") == [
        "completed",
        None,
        "cancelled",
        "waiting",
    ]


async def test_purge_ended_takes_the_oldest_first_and_is_bounded(q: Desk) -> None:
    for n in range(5):
        await q.run(f"j{n}")
        q.clock.advance(SECOND)
    assert await q.store.purge_ended(q.queue, State.COMPLETED, limit=2) == 2
    assert await q.states("j0", "j1", "j2") == [None, None, "completed"]
    assert await q.store.purge_ended(q.queue, State.COMPLETED, limit=10) == 3
    assert await q.store.purge_ended(q.queue, State.COMPLETED, limit=10) == 0
    assert await q.counts() == {}


async def test_purge_ended_leaves_what_ended_lately(q: Desk) -> None:
    await q.run("old")
    q.clock.advance(DAY // 2)
    await q.run("new")
    assert await q.store.purge_ended(q.queue, State.COMPLETED, older_than_ms=DAY // 4) == 1
    assert await q.states("old", "new") == [None, "completed"]


async def test_purge_ended_removes_ids_that_callers_gave_too(q: Desk) -> None:
    await q.run("mine", given_id=True, result_ttl_ms=DAY)
    assert await q.store.purge_ended(q.queue, State.COMPLETED) == 1
    assert not (await q.put_one("mine", given_id=True)).duplicate


async def test_obliterate_leaves_nothing_but_the_log(q: Desk) -> None:
    await q.run("done")
    await q.put("broken", "waiting")
    await q.settle(fail(await q.take()))
    await q.put_one("delayed", delay_ms=DAY, unique=UniqueSpec(lock="L"))
    await q.store.pause(q.queue)
    assert await q.store.obliterate(q.queue)
    assert await q.counts() == {}
    assert await q.states("done", "broken", "waiting", "delayed") == [None] * 4
    assert q.queue not in [r.queue for r in await q.store.queues(q.queue.tenant)]
    kinds = {
        (e.job, str(e.kind), e.reason)
        for e in await read_log(q.store, q.queue)
        if e.state in (State.CANCELLED, State.FAILED)
    }
    assert kinds == {
        ("broken", "failed", "error"),
        ("waiting", "cancelled", "removed"),
        ("delayed", "cancelled", "removed"),
    }


async def test_an_obliterated_queue_can_be_used_again(q: Desk) -> None:
    await q.put_one("a", key="k", unique=UniqueSpec(lock="L"))
    await q.store.pause(q.queue)
    assert await q.store.obliterate(q.queue)
    result = await q.put_one("a", unique=UniqueSpec(lock="L"))
    assert not result.duplicate
    assert await q.claim_ids() == ["a"]


async def test_a_queue_that_another_has_obliterated_is_listed_again_with_its_next_job(
    q_twice: tuple[Desk, Desk],
) -> None:
    first, second = q_twice
    await first.put("a")
    assert await second.store.obliterate(second.queue)
    await first.put("b")
    assert first.queue in [r.queue for r in await second.store.queues(first.queue.tenant)]


@pytest.mark.parametrize("state", ["waiting", "active"])
async def test_an_obliterated_key_can_be_used_again(q: Desk, state: str) -> None:
    await q.put_one("a", key="k")
    if state == "active":
        await q.take()
    assert await q.store.obliterate(q.queue, force=True)
    await q.put_one("b", key="k")
    assert await q.claim_ids() == ["b"]


async def test_a_queue_with_running_jobs_is_not_obliterated_unless_forced(q: Desk) -> None:
    await q.put("a", "b")
    lease = await q.take()
    with pytest.raises(ConfigError, match="active"):
        await q.store.obliterate(q.queue)
    assert await q.states("a", "b") == ["active", "waiting"]
    assert await q.store.obliterate(q.queue, force=True)
    assert await q.store.extend([ref(lease)], lease_ms=LEASE) == ["lost"]
    assert [r.id for r in (await q.exchange(complete(lease))).stale] == ["a"]
    assert await q.counts() == {}


async def test_obliterate_is_bounded(q: Desk) -> None:
    await q.put(*(f"j{n}" for n in range(25)))
    answers = [await q.store.obliterate(q.queue, limit=10)]
    assert (await q.counts())["waiting"] >= 15
    while not answers[-1]:
        answers.append(await q.store.obliterate(q.queue, limit=10))
        assert len(answers) < 6
    assert len(answers) >= 3
    assert await q.counts() == {}


async def test_obliterate_leaves_other_queues_alone(q: Desk) -> None:
    beside = q.beside("other")
    await q.put("a")
    await beside.put("a")
    await q.store.obliterate(q.queue)
    assert await beside.claim_ids() == ["a"]
