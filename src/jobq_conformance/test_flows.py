"""Flows: jobs that wait for jobs. A parent waits for its children."""

from __future__ import annotations

import pytest

from jobq.core.records.jobs import Input
from jobq.core.records.states import State
from jobq.errors import InvalidJob
from jobq_conformance.families import family, results, take
from jobq_conformance.kit import (
    DAY,
    SECOND,
    Desk,
    complete,
    fail,
    fresh_queue,
    read_all,
    retry,
)
from jobq_conformance.roles import needs

pytestmark = [needs("flows"), pytest.mark.topology]

# ── waiting for jobs ──────────────────────────────────────────────────────────────────────────────


async def test_a_job_is_blocked_until_those_it_waits_for_have_ended(q: Desk) -> None:
    await family(q, "a", "b")
    assert await q.states("a", "b", "p") == ["waiting", "waiting", "blocked"]
    leases = await take(q, "a", "b")
    await q.settle(complete(leases["a"]))
    assert await q.state("p") is State.BLOCKED
    await q.settle(complete(leases["b"]))
    assert await q.state("p") is State.WAITING
    assert await q.kinds("p") == ["accepted", "unblocked"]


async def test_the_results_of_children_are_delivered_in_the_order_of_the_edges(q: Desk) -> None:
    await family(q, "b", "a")
    leases = await take(q, "a", "b")
    await q.settle(complete(leases["a"], b'"A"'))
    await q.settle(complete(leases["b"], b'"B"'))
    lease = await q.take()
    assert lease.inputs == (
        Input(job=q.key("b"), result=b'"B"'),
        Input(job=q.key("a"), result=b'"A"'),
    )


async def test_an_edge_without_data_delivers_no_result(q: Desk) -> None:
    await q.store.put([q.spec("a"), q.spec("p", after=(q.edge("a", data=False),))])
    await q.settle(complete(await q.take(), b"secret"))
    lease = await q.take()
    assert lease.id == "p"
    assert [i for i in lease.inputs if i.result is not None] == []


async def test_the_codec_of_a_child_comes_with_its_result(q: Desk) -> None:
    await q.store.put([q.spec("a", codec="msgpack"), q.spec("p", after=(q.edge("a"),))])
    await q.settle(complete(await q.take(), b"\x01"))
    assert (await q.take()).inputs == (Input(job=q.key("a"), result=b"\x01", codec="msgpack"),)


async def test_a_freed_parent_can_be_claimed_in_the_same_exchange(q: Desk) -> None:
    await family(q, "a")
    settled = await q.exchange(complete(await q.take()), then=q.claiming())
    assert [lease.id for lease in settled.leases] == ["p"]


async def test_parents_and_children_can_be_read_back(q: Desk) -> None:
    await family(q, "a", "b")
    assert (await q.get("p")).children == (q.key("a"), q.key("b"))
    assert (await q.get("a")).parents == (q.key("p"),)
    assert ((await q.get("a")).children, (await q.get("p")).parents) == ((), ())


async def test_the_tree_can_be_read_after_all_have_ended(q: Desk) -> None:
    await family(q, "a")
    await q.settle(complete(await q.take()))
    await q.settle(complete(await q.take()))
    assert (await q.get("p")).children == (q.key("a"),)
    assert (await q.get("a")).parents == (q.key("p"),)


async def test_a_listing_shows_families_too(q: Desk) -> None:
    await family(q, "a")
    records = {r.id: r for r in await read_all(q.store, q.queue)}
    assert (records["p"].children, records["a"].parents) == ((q.key("a"),), (q.key("p"),))


async def test_a_chain_runs_link_by_link(q: Desk) -> None:
    specs = [q.spec("s0")] + [q.spec(f"s{n}", after=(q.edge(f"s{n - 1}"),)) for n in range(1, 5)]
    await q.store.put(specs)
    for n in range(5):
        lease = await q.take()
        assert lease.id == f"s{n}"
        assert results(lease) == ({} if n == 0 else {f"s{n - 1}": str(n - 1).encode()})
        await q.settle(complete(lease, str(n).encode()))


async def test_a_diamond_meets_at_its_end(q: Desk) -> None:
    specs = [
        q.spec("top"),
        q.spec("left", after=(q.edge("top"),)),
        q.spec("right", after=(q.edge("top"),)),
        q.spec("end", after=(q.edge("left"), q.edge("right"), q.edge("top"))),
    ]
    await q.store.put(specs)
    await q.settle(complete((await take(q, "top"))["top"], b"0"))
    sides = await take(q, "left", "right")
    await q.settle(complete(sides["right"], b"2"))
    await q.settle(complete(sides["left"], b"1"))
    assert results(await q.take()) == {"left": b"1", "right": b"2", "top": b"0"}


async def test_a_parent_may_come_before_its_children_in_the_batch(q: Desk) -> None:
    await q.store.put([q.spec("p", after=(q.edge("a"),)), q.spec("a")])
    assert await q.states("p", "a") == ["blocked", "waiting"]
    await q.settle(complete(await q.take()))
    assert await q.claim_ids() == ["p"]


async def test_a_child_may_have_many_parents(q: Desk) -> None:
    parents = [f"p{n}" for n in range(20)]
    await q.store.put([q.spec("a"), *(q.spec(p, after=(q.edge("a"),)) for p in parents)])
    await q.settle(complete(await q.take(), b"7"))
    leases = await q.claim(100)
    assert sorted(lease.id for lease in leases) == sorted(parents)
    assert {i.result for lease in leases for i in lease.inputs} == {b"7"}


async def test_a_job_may_wait_for_one_put_earlier(q: Desk) -> None:
    await q.put("a")
    await q.put_one("p", after=(q.edge("a"),))
    assert await q.state("p") is State.BLOCKED
    await q.settle(complete(await q.take(), b"1"))
    assert results(await q.take()) == {"a": b"1"}


async def test_a_job_that_waits_for_one_that_has_completed_need_not_wait(q: Desk) -> None:
    await q.run("a")
    result = await q.put_one("p", after=(q.edge("a"),))
    assert result.state is State.WAITING
    assert results(await q.take()) == {"a": b"1"}


async def test_a_job_that_waits_for_one_that_has_failed_fails_by_its_policy(q: Desk) -> None:
    await q.put("a")
    await q.settle(fail(await q.take()))
    await q.put_one("strict", after=(q.edge("a"),))
    await q.put_one("easy", after=(q.edge("a"),), on_child_failure="ignore")
    assert await q.states("strict", "easy") == ["failed", "waiting"]


async def test_an_edge_to_an_unknown_job_is_refused_and_nothing_is_stored(q: Desk) -> None:
    with pytest.raises(InvalidJob, match="nobody"):
        await q.store.put([q.spec("a"), q.spec("p", after=(q.edge("a"), q.edge("nobody")))])
    assert await q.counts() == {}
    assert await q.events() == []


async def test_a_flow_does_not_reach_into_another_tenant(q: Desk) -> None:
    stranger = Desk(q.store, fresh_queue(), q.clock, q.audited)
    await stranger.put("theirs")
    with pytest.raises(InvalidJob, match="theirs"):
        await q.store.put([q.spec("p", after=(stranger.edge("theirs"),))])
    assert await q.counts() == {}


async def test_a_retry_of_a_child_keeps_the_parent_waiting(q: Desk) -> None:
    await family(q, "a")
    await q.settle(retry(await q.take()))
    assert await q.state("p") is State.BLOCKED
    await q.settle(complete(await q.take(), b"second"))
    assert results(await q.take()) == {"a": b"second"}


async def test_a_parent_that_is_retried_gets_its_inputs_again(q: Desk) -> None:
    await family(q, "a")
    await q.settle(complete(await q.take(), b"1"))
    await q.settle(retry(await q.take()))
    assert results(await q.take()) == {"a": b"1"}


async def test_results_are_copied_when_the_child_ends(q: Desk) -> None:
    await q.store.put(
        [
            q.spec("a", result_ttl_ms=SECOND),
            q.spec("b"),
            q.spec("p", after=(q.edge("a"), q.edge("b"))),
        ]
    )
    leases = await take(q, "a", "b")
    await q.settle(complete(leases["a"], b"1"))
    q.clock.advance(5 * SECOND)
    await q.tick()
    assert await q.look("a") is None
    await q.settle(complete(leases["b"], b"2"))
    assert results(await q.take()) == {"a": b"1", "b": b"2"}


async def test_the_delay_of_a_blocked_job_begins_when_it_is_unblocked(q: Desk) -> None:
    await family(q, "a", delay_ms=5 * SECOND)
    q.clock.advance(DAY)
    await q.tick()
    assert await q.state("p") is State.BLOCKED
    await q.settle(complete(await q.take()))
    record = await q.get("p")
    assert (record.state, record.due_ms) == (State.DELAYED, q.clock.now_ms + 5 * SECOND)
    q.clock.advance(5 * SECOND)
    assert await q.claim_ids() == ["p"]


async def test_the_ttl_of_a_blocked_job_begins_when_it_is_unblocked(q: Desk) -> None:
    await family(q, "a", ttl_ms=10 * SECOND)
    q.clock.advance(DAY)
    await q.tick()
    await q.settle(complete(await q.take()))
    q.clock.advance(9 * SECOND)
    assert await q.claim_ids() == ["p"]
