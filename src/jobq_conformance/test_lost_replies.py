"""Lost replies: a repeated call is applied once and returns the same reply."""

from __future__ import annotations

import pytest

from jobq.core.records.states import State
from jobq_conformance.kit import SECOND, Desk, complete, fail, ref, release, retry
from jobq_conformance.roles import needs

pytestmark = [needs("delays"), pytest.mark.topology]


async def test_a_settle_repeated_is_no_false_stale(q: Desk) -> None:
    await q.put("a", "b")
    a, b = await q.claim(2)
    for _ in range(3):
        settled = await q.exchange(complete(a), retry(b, SECOND), call="x")
        assert settled.stale == ()
    assert await q.states("a", "b") == ["completed", "delayed"]
    assert (await q.get("b")).failures == 1
    assert await q.kinds("b") == ["accepted", "started", "retried"]


async def test_a_claim_repeated_finds_the_leases_it_granted(q: Desk) -> None:
    await q.put("a", "b", "c")
    first = await q.exchange(call="x", then=q.claiming(2))
    q.clock.advance(SECOND)
    again = await q.exchange(call="x", then=q.claiming(2))
    assert again.leases == first.leases
    assert [(r.state, r.attempt) for r in [await q.get("a"), await q.get("b")]] == [
        (State.ACTIVE, 1)
    ] * 2
    assert await q.state("c") is State.WAITING
    await q.settle(*(complete(lease) for lease in again.leases))


async def test_settle_and_claim_repeated_together_answer_as_the_first_time(q: Desk) -> None:
    await q.put("a", "b", "c")
    a = await q.take()
    first = await q.exchange(complete(a), call="x", then=q.claiming(1))
    again = await q.exchange(complete(a), call="x", then=q.claiming(1))
    assert (again.stale, again.leases) == (first.stale, first.leases)
    assert [lease.id for lease in again.leases] == ["b"]
    assert await q.counts() == {"completed": 1, "active": 1, "waiting": 1}


async def test_a_repeated_call_names_the_same_stale_ones(q: Desk) -> None:
    await q.put("a", "b")
    old = await q.take(lease_ms=SECOND)
    b = await q.take()
    q.clock.advance(2 * SECOND)
    await q.take("w2")
    first = await q.exchange(complete(old), complete(b), call="x")
    again = await q.exchange(complete(old), complete(b), call="x")
    assert [r.token for r in first.stale] == [r.token for r in again.stale] == [old.token]
    assert await q.state("b") is State.COMPLETED


async def test_a_repeated_empty_claim_stays_empty_or_finds_new_work_but_never_loses_it(
    q: Desk,
) -> None:
    first = await q.exchange(call="x", then=q.claiming(1))
    assert first.leases == ()
    await q.put("a")
    again = await q.exchange(call="x", then=q.claiming(1))
    later = await q.exchange(call="y", then=q.claiming(1))
    assert [lease.id for lease in (*again.leases, *later.leases)] == ["a"]


async def test_a_repeated_release_does_not_take_the_job_from_its_next_worker(q: Desk) -> None:
    await q.put("a")
    a = await q.take()
    await q.exchange(release(a), call="x")
    theirs = await q.take("w2")
    assert (await q.exchange(release(a), call="x")).stale == ()
    assert await q.store.extend([ref(theirs)], lease_ms=SECOND) == ["held"]
    assert (await q.get("a")).worker == "w2"


async def test_calls_of_different_workers_are_different(q: Desk) -> None:
    await q.put("a", "b")
    first = await q.exchange(worker="w1", call="1", then=q.claiming(1))
    second = await q.exchange(worker="w2", call="1", then=q.claiming(1))
    assert [lease.id for lease in (*first.leases, *second.leases)] == ["a", "b"]


async def test_a_new_call_is_a_new_exchange(q: Desk) -> None:
    await q.put("a", "b")
    first = await q.exchange(call="1", then=q.claiming(1))
    second = await q.exchange(call="2", then=q.claiming(1))
    assert [lease.id for lease in (*first.leases, *second.leases)] == ["a", "b"]


async def test_each_lane_of_a_worker_remembers_its_own_last_call(q: Desk) -> None:
    await q.put("a", "b", "c")
    first = await q.exchange(call="x", then=q.claiming(1))
    second = await q.exchange(call="y/1", then=q.claiming(1))
    again = [await q.exchange(call=call, then=q.claiming(1)) for call in ("x", "y/1")]
    assert [answer.leases for answer in again] == [first.leases, second.leases]
    other = await q.exchange(call="x/1", then=q.claiming(1))
    assert [lease.id for lease in (*first.leases, *second.leases, *other.leases)] == ["a", "b", "c"]


async def test_a_call_over_several_queues_repeats_whole(q: Desk) -> None:
    beside = q.beside("other")
    await q.put("a", "c")
    await beside.put("b", "d")
    claiming = q.claiming(2, queues=(q.queue, beside.queue))
    a, c = (await q.exchange(call="0", then=claiming)).leases
    outcomes = (complete(a), fail(c))
    first = await q.exchange(*outcomes, call="1", then=claiming)
    again = await q.exchange(*outcomes, call="1", then=claiming)
    assert [lease.id for lease in first.leases] == ["b", "d"]
    assert (again.stale, again.leases) == (first.stale, first.leases)
    assert await q.states("a", "c") == ["completed", "failed"]


async def test_a_repeat_through_another_handle_answers_the_same(q_twice: tuple[Desk, Desk]) -> None:
    first, second = q_twice
    await first.put("a", "b")
    granted = await first.exchange(call="x", then=first.claiming(1))
    again = await second.exchange(call="x", then=second.claiming(1))
    assert again.leases == granted.leases


async def test_leases_of_a_reply_that_never_came_stall_like_any_other(q: Desk) -> None:
    await q.put("a")
    await q.exchange(worker="lost", call="x", then=q.claiming(1, lease_ms=SECOND))
    q.clock.advance(2 * SECOND)
    lease = await q.take("w2")
    assert (lease.id, lease.attempt, lease.stalls) == ("a", 2, 1)


@pytest.mark.parametrize("many", [1, 20])
async def test_a_call_that_arrives_again_after_the_next_one_grants_no_token_twice(
    q: Desk, many: int
) -> None:
    await q.put(*(f"j{n}" for n in range(many)))
    first = await q.exchange(call="x", then=q.claiming(many))
    again = await q.exchange(call="x", then=q.claiming(many))
    assert again.leases == first.leases
    await q.exchange(*(release(lease) for lease in first.leases), call="y")
    await q.exchange(call="x", then=q.claiming(many))  # the store may execute it, or refuse it
    refs = tuple(ref(lease) for lease in first.leases)
    assert await q.store.extend(refs, lease_ms=SECOND) == ["lost"] * many
    late = await q.exchange(*(complete(lease) for lease in first.leases), call="z")
    assert late.stale == refs
    assert (await q.counts()).get("completed", 0) == 0
