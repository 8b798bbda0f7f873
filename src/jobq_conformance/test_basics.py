"""What every store does: keep jobs, give each to one worker, and record how it ended."""

from __future__ import annotations

import pytest

from jobq.core.records.states import State
from jobq_conformance.kit import LEASE, Desk, complete, fail, ref, release, retry
from jobq_conformance.roles import needs

pytestmark = [needs("jobs"), pytest.mark.topology]


async def test_a_job_that_is_put_can_be_read(q: Desk) -> None:
    (result,) = await q.put("a", payload=b"[[1],{}]")
    assert (result.id, result.life, result.state, result.duplicate, result.found) == (
        "a",
        0,
        State.WAITING,
        False,
        None,
    )
    record = await q.get("a")
    assert (record.queue, record.id, record.name, record.payload) == (
        q.queue,
        "a",
        "task",
        b"[[1],{}]",
    )
    assert (record.state, record.attempt, record.failures, record.created_ms) == (
        State.WAITING,
        0,
        0,
        q.clock.now_ms,
    )


async def test_jobs_are_read_in_the_order_asked_for_and_unknown_ones_are_none(q: Desk) -> None:
    await q.put("a", "b")
    records = await q.store.get([q.key("b"), q.key("nobody"), q.key("a")])
    assert [record and record.id for record in records] == ["b", None, "a"]
    assert await q.store.get([]) == []


async def test_an_id_that_is_stored_is_a_duplicate_and_changes_nothing(q: Desk) -> None:
    await q.put("a", payload=b"first")
    again, other = await q.put("a", "b", payload=b"second")
    assert (again.duplicate, other.duplicate) == (True, False)
    assert again.found is not None
    assert again.found.payload == (await q.get("a")).payload == b"first"
    assert await q.claim_ids() == ["a", "b"]


async def test_an_id_is_a_duplicate_only_in_its_own_queue(q: Desk) -> None:
    beside = q.beside("other")
    await q.put("a")
    assert not (await beside.put_one("a")).duplicate
    assert await q.claim_ids() == ["a"]
    assert await beside.claim_ids() == ["a"]


async def test_jobs_are_claimed_in_the_order_they_came(q: Desk) -> None:
    await q.put("a", "b")
    await q.put("c")
    assert [lease.id for lease in await q.claim(2)] == ["a", "b"]
    assert await q.claim_ids(worker="w2") == ["c"]
    assert await q.claim_ids() == []


async def test_a_claim_of_several_queues_takes_from_each(q: Desk) -> None:
    beside = q.beside("other")
    await q.put("a")
    await beside.put("b")
    settled = await q.exchange(then=q.claiming(5, queues=(q.queue, beside.queue)))
    assert sorted(lease.id for lease in settled.leases) == ["a", "b"]


async def test_a_lease_says_what_its_job_is(q: Desk) -> None:
    await q.put("a", payload=b"[[7],{}]", codec="msgpack")
    lease = await q.take("bee")
    assert (lease.queue, lease.id, lease.name, lease.payload, lease.codec) == (
        q.queue,
        "a",
        "task",
        b"[[7],{}]",
        "msgpack",
    )
    assert (lease.attempt, lease.failures, lease.life, lease.expires_ms) == (
        1,
        0,
        0,
        q.clock.now_ms + LEASE,
    )
    record = await q.get("a")
    assert (record.state, record.attempt, record.worker, record.started_ms) == (
        State.ACTIVE,
        1,
        "bee",
        q.clock.now_ms,
    )


async def test_a_completed_job_has_its_result(q: Desk) -> None:
    await q.put("a", "b")
    a, b = await q.claim(2)
    q.clock.advance(5)
    await q.settle(complete(a, b"42"), complete(b, None))
    first, second = await q.get("a"), await q.get("b")
    assert (first.state, first.result, first.finished_ms) == (
        State.COMPLETED,
        b"42",
        q.clock.now_ms,
    )
    assert (second.state, second.result) == (State.COMPLETED, None)
    assert await q.claim_ids() == []


async def test_a_failed_job_says_why(q: Desk) -> None:
    await q.put("a")
    await q.settle(fail(await q.take(), "no such order"))
    record = await q.get("a")
    assert record.failure is not None
    assert (record.state, record.failures, record.failure.message) == (
        State.FAILED,
        1,
        "no such order",
    )
    assert await q.claim_ids() == []


async def test_a_retry_without_delay_goes_to_the_back(q: Desk) -> None:
    await q.put("a", "b")
    await q.settle(retry(await q.take()))
    assert await q.state("a") is State.WAITING
    first, second = await q.claim(2)
    assert [(lease.id, lease.attempt, lease.failures) for lease in (first, second)] == [
        ("b", 1, 0),
        ("a", 2, 1),
    ]


async def test_a_released_job_goes_to_the_front_at_no_cost(q: Desk) -> None:
    await q.put("a", "b")
    await q.settle(release(await q.take()))
    lease = await q.take()
    assert (lease.id, lease.attempt, lease.failures, lease.stalls) == ("a", 2, 0, 0)


async def test_a_lease_settles_once(q: Desk) -> None:
    await q.put("a")
    lease = await q.take()
    await q.settle(complete(lease, b"1"))
    assert (await q.exchange(complete(lease, b"2"))).stale == (ref(lease),)
    assert (await q.get("a")).result == b"1"


async def test_an_old_lease_cannot_settle_the_job_of_a_new_one(q: Desk) -> None:
    await q.put("a")
    old = await q.take()
    await q.settle(release(old))
    new = await q.take("w2")
    assert new.token != old.token
    assert (await q.exchange(complete(old), worker="w1")).stale == (ref(old),)
    assert await q.state("a") is State.ACTIVE
    await q.settle(complete(new), worker="w2")


async def test_a_repeated_call_answers_as_the_first_and_does_nothing(q: Desk) -> None:
    await q.put("a", "b", "c")
    a = await q.take()
    first = await q.exchange(complete(a), call="x", then=q.claiming(1))
    again = await q.exchange(complete(a), call="x", then=q.claiming(1))
    assert [lease.id for lease in first.leases] == ["b"]
    assert (again.stale, again.leases) == ((), first.leases)
    assert await q.claim_ids(worker="w2") == ["c"]


async def test_what_one_handle_stores_another_finds(q_twice: tuple[Desk, Desk]) -> None:
    first, second = q_twice
    await first.put("a")
    lease = await second.take()
    assert await first.claim_ids() == []
    await first.settle(complete(lease, b"1"))
    assert (await second.get("a")).result == b"1"
