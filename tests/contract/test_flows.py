"""Flows: jobs that wait for jobs, submitted whole or not at all. A parent waits for its children."""

from __future__ import annotations

import pytest

from jobq.core.records import Cancel, Input, JobSpec, Lease, Remove, Rerun
from jobq.core.states import State
from jobq.errors import InvalidJob

from .kit import DAY, SECOND, Desk, complete, fail, fresh_queue, read_all, read_log, retry


def results(lease: Lease) -> dict[str, bytes | None]:
    """What the children delivered, by their ids."""
    return {i.job.id: i.result for i in lease.inputs}


async def family(q: Desk, *children: str, parent: str = "p", **options: object) -> None:
    """A parent that waits for these children, put in one call."""
    edges = tuple(q.edge(id) for id in children)
    await q.store.put([*(q.spec(id) for id in children), q.spec(parent, after=edges, **options)])


async def take(q: Desk, *ids: str) -> dict[str, Lease]:
    """These are in line, and no others."""
    leases = {lease.id: lease for lease in await q.claim(100)}
    assert sorted(leases) == sorted(ids)
    return leases


# ── waiting for jobs ─────────────────────────────────────────────────────────────────────────────────────────────────


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
    assert lease.inputs == (Input(job=q.key("b"), result=b'"B"'), Input(job=q.key("a"), result=b'"A"'))


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


async def test_a_parent_may_stand_before_its_children_in_the_batch(q: Desk) -> None:
    await q.store.put([q.spec("p", after=(q.edge("a"),)), q.spec("a")])
    assert await q.states("p", "a") == ["blocked", "waiting"]
    await q.settle(complete(await q.take()))
    assert await q.line() == ["p"]


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
    await q.store.put([q.spec("a", result_ttl_ms=SECOND), q.spec("b"), q.spec("p", after=(q.edge("a"), q.edge("b")))])
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
    assert await q.line() == ["p"]


async def test_the_ttl_of_a_blocked_job_begins_when_it_is_unblocked(q: Desk) -> None:
    await family(q, "a", ttl_ms=10 * SECOND)
    q.clock.advance(DAY)
    await q.tick()
    await q.settle(complete(await q.take()))
    q.clock.advance(9 * SECOND)
    assert await q.line() == ["p"]


# ── when a child fails ───────────────────────────────────────────────────────────────────────────────────────────────


async def test_by_default_a_parent_fails_with_its_childs_error(q: Desk) -> None:
    await family(q, "a", "b")
    leases = await take(q, "a", "b")
    await q.settle(fail(leases["a"], "no such tenant"))
    record = await q.get("p")
    assert (record.state, record.attempt, record.failures) == (State.FAILED, 0, 0)
    assert record.failure is not None
    assert record.failure.reason == "child"
    assert "no such tenant" in record.failure.message
    event = await q.last_event("p")
    assert (event.kind, event.previous, event.reason) == ("failed", State.BLOCKED, "child")
    await q.settle(complete(leases["b"]))
    assert await q.state("p") is State.FAILED
    assert await q.claim() == []


async def test_a_failure_goes_all_the_way_up(q: Desk) -> None:
    await q.store.put([q.spec("a"), *(q.spec(f"p{n}", after=(q.edge(f"p{n - 1}" if n else "a"),)) for n in range(4))])
    await q.settle(fail(await q.take(), "root cause"))
    assert await q.states("p0", "p1", "p2", "p3") == ["failed"] * 4
    top = (await q.get("p3")).failure
    assert top is not None
    assert "root cause" in top.message


async def test_by_policy_ignore_a_failed_child_delivers_nothing(q: Desk) -> None:
    await family(q, "a", "b", on_child_failure="ignore")
    leases = await take(q, "a", "b")
    await q.settle(fail(leases["a"]))
    assert await q.state("p") is State.BLOCKED
    await q.settle(complete(leases["b"], b"2"))
    lease = await q.take()
    assert lease.inputs == (Input(job=q.key("a")), Input(job=q.key("b"), result=b"2"))


async def test_by_policy_continue_a_failed_child_delivers_its_failure(q: Desk) -> None:
    await family(q, "a", "b", on_child_failure="continue")
    leases = await take(q, "a", "b")
    await q.settle(complete(leases["b"], b"2"), fail(leases["a"], "no such tenant"))
    lease = await q.take()
    (a, b) = lease.inputs
    assert (a.result, b.result, b.failure) == (None, b"2", None)
    assert a.failure is not None
    assert "no such tenant" in a.failure.message


@pytest.mark.parametrize("way", ["stalled", "expired"])
async def test_a_child_that_stalls_or_expires_has_failed(q: Desk, way: str) -> None:
    await q.store.put([q.spec("a", max_stalls=0, ttl_ms=SECOND), q.spec("p", after=(q.edge("a"),))])
    if way == "stalled":
        await q.take(lease_ms=SECOND)
    q.clock.advance(2 * SECOND)
    await q.tick()
    assert await q.states("a", "p") == ["failed", "failed"]


@pytest.mark.parametrize("command", [Cancel, Remove])
async def test_cancelling_or_removing_a_child_fails_the_parent(q: Desk, command: type[Cancel] | type[Remove]) -> None:
    await family(q, "a")
    assert await q.alter(command(job=q.key("a")))
    record = await q.get("p")
    assert record.state is State.FAILED
    assert record.failure is not None
    assert record.failure.reason == "child"


@pytest.mark.parametrize("command", [Cancel, Remove])
async def test_cancelling_or_removing_the_last_open_child_releases_a_parent_that_ignores(
    q: Desk, command: type[Cancel] | type[Remove]
) -> None:
    await family(q, "a", "b", on_child_failure="ignore")
    await q.settle(complete(await q.take(), b"1"))
    assert await q.alter(command(job=q.key("b")))
    assert results(await q.take()) == {"a": b"1", "b": None}


async def test_clearing_the_queue_leaves_no_parent_waiting_for_ever(q: Desk) -> None:
    await family(q, "a", "b")
    await q.store.clear(q.queue)
    assert (await q.get("p")).state.ended


async def test_rerunning_a_child_does_not_revive_its_parent(q: Desk) -> None:
    await family(q, "a")
    await q.settle(fail(await q.take()))
    assert await q.alter(Rerun(job=q.key("a")))
    await q.settle(complete(await q.take()))
    assert await q.state("p") is State.FAILED
    assert await q.claim() == []


async def test_a_parent_that_failed_with_its_child_can_be_rerun(q: Desk) -> None:
    await family(q, "a")
    await q.settle(fail(await q.take()))
    assert await q.alter(Rerun(job=q.key("p")))
    lease = await q.take()
    assert (lease.id, lease.life) == ("p", 1)
    await q.settle(complete(lease))


# ── cancelling a parent ──────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_blocked_job_is_cancelled_at_once_and_its_children_go_on(q: Desk) -> None:
    await family(q, "a")
    assert await q.alter(Cancel(job=q.key("p")))
    assert await q.states("p", "a") == ["cancelled", "waiting"]
    await q.settle(complete(await q.take()))
    assert await q.state("p") is State.CANCELLED
    assert await q.claim() == []


async def test_cancelling_cascades_on_request(q: Desk) -> None:
    await q.store.put(
        [q.spec("a"), q.spec("b", after=(q.edge("a"),)), q.spec("c"), q.spec("p", after=(q.edge("b"), q.edge("c")))]
    )
    await q.put("other")
    assert await q.alter(Cancel(job=q.key("p"), cascade=True))
    assert await q.states("p", "a", "b", "c", "other") == ["cancelled", "cancelled", "cancelled", "cancelled", "waiting"]


async def test_a_cascade_leaves_what_has_ended_alone_and_ends(q: Desk) -> None:
    """An id used again may wait for a job that once waited for it."""
    await q.store.put([q.spec("a"), q.spec("p", after=(q.edge("a"),), on_child_failure="ignore")])
    await q.alter(Cancel(job=q.key("a")))
    await q.put_one("a", after=(q.edge("p"),))
    assert await q.alter(Cancel(job=q.key("a"), cascade=True))
    assert await q.states("a", "p") == ["cancelled", "cancelled"]
    assert not await q.alter(Cancel(job=q.key("a"), cascade=True))


async def test_a_cascade_goes_down_a_long_chain(q: Desk) -> None:
    ids = [f"s{n}" for n in range(1200)]
    await q.store.put([q.spec(id, after=(q.edge(f"s{n - 1}"),) if n else ()) for n, id in enumerate(ids)])
    assert await q.alter(Cancel(job=q.key(ids[-1]), cascade=True))
    await q.tick()
    assert await q.counts() == {"cancelled": 1200}


async def test_a_failure_goes_up_a_long_chain(q: Desk) -> None:
    ids = [f"s{n}" for n in range(1200)]
    await q.store.put([q.spec(id, after=(q.edge(f"s{n - 1}"),) if n else ()) for n, id in enumerate(ids)])
    await q.settle(fail(await q.take(), "root cause"))
    await q.tick()
    assert await q.counts() == {"failed": 1200}
    top = (await q.get(ids[-1])).failure
    assert top is not None
    assert "root cause" in top.message
    assert len(top.message) < 2_000


async def test_a_cascade_asks_running_children(q: Desk) -> None:
    await family(q, "a")
    lease = await q.take()
    assert await q.alter(Cancel(job=q.key("p"), cascade=True))
    record = await q.get("a")
    assert (record.state, record.cancel_asked) == (State.ACTIVE, True)
    await q.settle(fail(lease))
    assert await q.states("p", "a") == ["cancelled", "cancelled"]


async def test_a_new_life_of_a_cancelled_parent_waits_anew(q: Desk) -> None:
    await family(q, "a")
    await q.alter(Cancel(job=q.key("p")))
    await q.put("b")
    result = await q.put_one("p", after=(q.edge("b"),))
    assert (result.duplicate, result.life, result.state) == (False, 1, State.BLOCKED)
    leases = await take(q, "a", "b")
    await q.settle(complete(leases["a"], b"1"))
    assert await q.state("p") is State.BLOCKED
    await q.settle(complete(leases["b"], b"2"))
    assert results(await q.take()) == {"b": b"2"}


# ── whole or not at all ──────────────────────────────────────────────────────────────────────────────────────────────


async def test_staged_members_are_invisible_until_the_last_call(q: Desk) -> None:
    await q.store.put([q.spec("a"), q.spec("b")], flow="f1", last=False)
    assert await q.states("a", "b") == [None, None]
    assert await q.counts() == {}
    assert await q.events() == []
    assert await q.claim() == []
    await q.store.put([q.spec("p", after=(q.edge("a"), q.edge("b")))], flow="f1")
    assert await q.states("a", "b", "p") == ["waiting", "waiting", "blocked"]
    assert await q.line() == ["a", "b"]
    assert [str(e.kind) for e in await q.events()][:3] == ["accepted"] * 3


async def test_a_flow_in_one_call_is_whole(q: Desk) -> None:
    results = await q.store.put([q.spec("a"), q.spec("p", after=(q.edge("a"),))], flow="f1")
    assert [(r.id, r.state, r.duplicate) for r in results] == [("a", State.WAITING, False), ("p", State.BLOCKED, False)]


async def test_finishing_a_flow_again_changes_nothing(q: Desk) -> None:
    specs = [q.spec("a"), q.spec("p", after=(q.edge("a"),))]
    await q.store.put(specs, flow="f1")
    await q.settle(complete(await q.take()))
    await q.store.put(specs, flow="f1")
    assert await q.states("a", "p") == ["completed", "waiting"]
    assert len(await q.events("p")) == 2


async def test_staging_repeated_after_a_lost_reply_stages_once(q: Desk) -> None:
    for _ in range(2):
        await q.store.put([q.spec("a")], flow="f1", last=False)
    for _ in range(2):
        await q.store.put([q.spec("p", after=(q.edge("a"),))], flow="f1")
    assert await q.counts() == {"waiting": 1, "blocked": 1}
    assert await q.kinds("a") == ["accepted"]


async def test_a_flow_never_finished_is_swept_and_its_ids_are_free(q: Desk) -> None:
    await q.store.put([q.spec("a", payload=b"staged")], flow="f1", last=False)
    q.clock.advance(7 * DAY)
    await q.tick()
    assert not (await q.put_one("a", payload=b"new")).duplicate
    assert (await q.take()).payload == b"new"
    assert await q.counts() == {"active": 1}


async def test_a_flow_with_a_bad_edge_is_refused_whole(q: Desk) -> None:
    await q.store.put([q.spec("a")], flow="f1", last=False)
    with pytest.raises(InvalidJob, match="nobody"):
        await q.store.put([q.spec("p", after=(q.edge("a"), q.edge("nobody")))], flow="f1")
    assert await q.counts() == {}
    assert await q.events() == []


async def test_two_flows_do_not_mix(q: Desk) -> None:
    await q.store.put([q.spec("a")], flow="f1", last=False)
    await q.store.put([q.spec("b")], flow="f2")
    assert await q.states("a", "b") == [None, "waiting"]


async def test_an_id_already_stored_becomes_an_edge_to_that_job(q: Desk) -> None:
    await q.put_one("a", payload=b"first")
    answers = await q.store.put([q.spec("a", payload=b"second"), q.spec("p", after=(q.edge("a"),))], flow="f1")
    assert [(r.id, r.duplicate) for r in answers] == [("a", True), ("p", False)]
    lease = await q.take()
    assert lease.payload == b"first"
    await q.settle(complete(lease, b"1"))
    assert results(await q.take()) == {"a": b"1"}


async def test_a_completed_id_in_a_flow_gives_its_cached_result(q: Desk) -> None:
    await q.run("a")
    answers = await q.store.put([q.spec("a"), q.spec("p", after=(q.edge("a"),))], flow="f1")
    assert [(r.id, r.duplicate, r.state) for r in answers] == [("a", True, State.COMPLETED), ("p", False, State.WAITING)]
    assert results(await q.take()) == {"a": b"1"}


async def test_a_large_flow_goes_in_by_batches_and_finishes(q: Desk) -> None:
    children = [f"c{n:04}" for n in range(1000)]
    for start in range(0, 1000, 250):
        await q.store.put([q.spec(id) for id in children[start : start + 250]], flow="big", last=False)
    await q.store.put([q.spec("p", after=tuple(q.edge(id) for id in children))], flow="big")
    assert await q.counts() == {"waiting": 1000, "blocked": 1}
    done = 0
    while leases := await q.claim(250):
        if leases[0].id == "p":
            assert results(leases[0]) == dict.fromkeys(children, b"1")
            break
        await q.settle(*map(complete, leases))
        done += len(leases)
    assert done == 1000


# ── across queues ────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_parent_may_wait_for_jobs_of_other_queues(q: Desk) -> None:
    beside = q.beside("other")
    specs: list[JobSpec] = [q.spec("a"), beside.spec("b"), q.spec("p", after=(q.edge("a"), beside.edge("b")))]
    await q.store.put(specs, flow="f1")
    await q.settle(complete(await q.take(), b"1"))
    await beside.settle(complete(await beside.take(), b"2"))
    await q.tick()
    lease = await q.take()
    assert lease.inputs == (Input(job=q.key("a"), result=b"1"), Input(job=beside.key("b"), result=b"2"))
    assert (await beside.get("b")).parents == (q.key("p"),)


async def test_a_flow_over_queues_is_staged_and_finished_whole(q: Desk) -> None:
    beside = q.beside("other")
    await q.store.put([beside.spec("b")], flow="f1", last=False)
    await q.store.put([q.spec("a")], flow="f1", last=False)
    assert (await beside.states("b"), await q.states("a")) == ([None], [None])
    await q.store.put([q.spec("p", after=(q.edge("a"), beside.edge("b")))], flow="f1")
    await q.tick()
    assert (await beside.states("b"), await q.states("a", "p")) == (["waiting"], ["waiting", "blocked"])


async def test_a_failure_crosses_queues(q: Desk) -> None:
    beside, third = q.beside("other"), q.beside("third")
    specs = [beside.spec("b"), q.spec("p", after=(beside.edge("b"),)), third.spec("top", after=(q.edge("p"),))]
    await q.store.put(specs, flow="f1")
    await beside.settle(fail(await beside.take(), "far away"))
    await q.tick()
    await q.tick()
    assert (await q.states("p"), await third.states("top")) == (["failed"], ["failed"])


async def test_a_cascade_crosses_queues(q: Desk) -> None:
    beside = q.beside("other")
    await q.store.put([beside.spec("b"), q.spec("p", after=(beside.edge("b"),))], flow="f1")
    assert await q.alter(Cancel(job=q.key("p"), cascade=True))
    await q.tick()
    assert await beside.states("b") == ["cancelled"]


async def test_a_child_ended_before_the_flow_was_finished_counts_across_queues(q: Desk) -> None:
    beside = q.beside("other")
    await beside.run("b")
    await q.store.put([q.spec("p", after=(beside.edge("b"),))])
    await q.tick()
    assert results(await q.take()) == {"b": b"1"}


async def test_a_parent_hears_of_a_child_of_another_queue_once(q: Desk) -> None:
    beside = q.beside("other")
    await q.store.put([beside.spec("b"), q.spec("p", after=(beside.edge("b"),))], flow="f1")
    await beside.settle(complete(await beside.take()))
    for _ in range(3):
        await q.tick()
    await q.settle(complete(await q.take()))
    await q.tick()
    assert [str(e.kind) for e in await read_log(q.store, q.queue)] == ["accepted", "unblocked", "started", "completed"]
