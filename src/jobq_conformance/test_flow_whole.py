"""Flows are submitted completely or not at all, and may span queues."""

from __future__ import annotations

from itertools import permutations

import pytest

from jobq.core.records.commands import Cancel
from jobq.core.records.jobs import Input, JobSpec, QueueName
from jobq.core.records.states import State
from jobq.errors import ConfigError, InvalidJob
from jobq_conformance.families import results
from jobq_conformance.kit import DAY, MINUTE, Desk, complete, fail, read_log
from jobq_conformance.roles import needs

pytestmark = needs("flows")

# ── whole or not at all ───────────────────────────────────────────────────────────────────────────


async def test_staged_members_are_invisible_until_the_last_call(q: Desk) -> None:
    await q.store.put([q.spec("a"), q.spec("b")], flow="f1", last=False)
    assert await q.states("a", "b") == [None, None]
    assert await q.counts() == {}
    assert await q.events() == []
    assert await q.claim() == []
    await q.store.put([q.spec("p", after=(q.edge("a"), q.edge("b")))], flow="f1")
    assert await q.states("a", "b", "p") == ["waiting", "waiting", "blocked"]
    assert await q.claim_ids() == ["a", "b"]
    assert [str(e.kind) for e in await q.events()][:3] == ["accepted"] * 3


async def test_a_flow_in_one_call_is_whole(q: Desk) -> None:
    results = await q.store.put([q.spec("a"), q.spec("p", after=(q.edge("a"),))], flow="f1")
    assert [(r.id, r.state, r.duplicate) for r in results] == [
        ("a", State.WAITING, False),
        ("p", State.BLOCKED, False),
    ]


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


async def test_a_flow_in_the_making_gives_a_tick_nothing_to_do(q: Desk) -> None:
    await q.store.put([q.spec("a")], flow="f1", last=False)
    q.clock.advance(MINUTE)
    await q.tick()
    assert await q.store.tick(limit=500) == 0


async def test_a_flow_with_a_bad_edge_is_refused_whole(q: Desk) -> None:
    await q.store.put([q.spec("a")], flow="f1", last=False)
    with pytest.raises(InvalidJob, match="nobody"):
        await q.store.put([q.spec("p", after=(q.edge("a"), q.edge("nobody")))], flow="f1")
    assert await q.counts() == {}
    assert await q.events() == []


@pytest.mark.parametrize("last", [False, True])
async def test_a_call_without_members_is_refused_and_what_is_staged_stays(
    q: Desk, last: bool
) -> None:
    await q.store.put([q.spec("a")], flow="f1", last=False)
    with pytest.raises(InvalidJob, match="has no jobs"):
        await q.store.put([], flow="f1", last=last)
    assert await q.counts() == {}
    await q.store.put([q.spec("b")], flow="f1")
    assert await q.claim_ids() == ["a", "b"]


async def test_two_flows_do_not_mix(q: Desk) -> None:
    await q.store.put([q.spec("a")], flow="f1", last=False)
    await q.store.put([q.spec("b")], flow="f2")
    assert await q.states("a", "b") == [None, "waiting"]


async def test_flows_of_one_id_in_two_tenants_do_not_mix(q: Desk) -> None:
    beside = Desk(q.store, QueueName(f"{q.queue.tenant}-2", q.queue.queue), q.clock, q.audited)
    await q.store.put([q.spec("a")], flow="f1", last=False)
    await q.store.put([beside.spec("b")], flow="f1", last=False)
    await q.store.put([beside.spec("c", after=(beside.edge("b"),))], flow="f1")
    assert (await q.counts(), await beside.counts()) == ({}, {"waiting": 1, "blocked": 1})
    await q.store.put([q.spec("d")], flow="f1")
    assert await q.claim_ids() == ["a", "d"]


async def test_a_flow_of_jobs_with_and_without_keys_is_refused_whole_however_it_came(
    q: Desk,
) -> None:
    await q.store.put([q.spec("a", key="k")], flow="f1", last=False)
    with pytest.raises(ConfigError):
        await q.store.put([q.spec("b")], flow="f1")
    assert await q.counts() == {}
    await q.put("c")  # the queue is of neither kind yet


async def test_a_flow_whose_queue_has_become_of_the_other_kind_meanwhile_is_refused_whole(
    q: Desk,
) -> None:
    beside = q.beside("other")
    await q.store.put([q.spec("a", key="k")], flow="f1", last=False)
    await q.put("plain")
    with pytest.raises(ConfigError):
        await q.store.put([beside.spec("b")], flow="f1")
    assert (await q.claim_ids(), await beside.counts()) == (["plain"], {})


async def test_jobs_of_one_put_may_wait_for_each_other_in_any_order_over_queues(q: Desk) -> None:
    beside = q.beside("other")
    await q.store.put(
        [
            q.spec("p", after=(beside.edge("b"),)),
            beside.spec("b", after=(q.edge("a"),)),
            q.spec("a"),
        ]
    )
    assert (await q.states("p", "a"), await beside.states("b")) == (
        ["blocked", "waiting"],
        ["blocked"],
    )


async def test_jobs_of_one_large_put_may_wait_for_each_other_in_any_order(q: Desk) -> None:
    await q.store.put(
        [q.spec("p", after=(q.edge("c2500"),)), *(q.spec(f"c{n}") for n in range(2501))]
    )
    assert await q.counts() == {"waiting": 2501, "blocked": 1}


async def test_an_id_already_stored_becomes_an_edge_to_that_job(q: Desk) -> None:
    await q.put_one("a", payload=b"first")
    answers = await q.store.put(
        [q.spec("a", payload=b"second"), q.spec("p", after=(q.edge("a"),))], flow="f1"
    )
    assert [(r.id, r.duplicate) for r in answers] == [("a", True), ("p", False)]
    lease = await q.take()
    assert lease.payload == b"first"
    await q.settle(complete(lease, b"1"))
    assert results(await q.take()) == {"a": b"1"}


async def test_a_completed_id_in_a_flow_gives_its_cached_result(q: Desk) -> None:
    await q.run("a")
    answers = await q.store.put([q.spec("a"), q.spec("p", after=(q.edge("a"),))], flow="f1")
    assert [(r.id, r.duplicate, r.state) for r in answers] == [
        ("a", True, State.COMPLETED),
        ("p", False, State.WAITING),
    ]
    assert results(await q.take()) == {"a": b"1"}


async def test_a_large_flow_goes_in_by_batches_and_finishes(q: Desk) -> None:
    children = [f"c{n:04}" for n in range(2500)]
    for start in range(0, 2500, 500):
        await q.store.put(
            [q.spec(id) for id in children[start : start + 500]], flow="big", last=False
        )
    await q.store.put([q.spec("p", after=tuple(q.edge(id) for id in children))], flow="big")
    assert await q.counts() == {"waiting": 2500, "blocked": 1}
    done: list[str] = []
    while leases := await q.claim(500):
        if leases[0].id == "p":
            assert results(leases[0]) == dict.fromkeys(children, b"1")
            break
        await q.settle(*map(complete, leases))
        done += [lease.id for lease in leases]
    assert done == children


async def test_a_parent_of_many_of_which_some_have_ended_waits_for_the_others(q: Desk) -> None:
    for start in range(0, 1200, 400):
        await q.put(*(f"c{n}" for n in range(start, start + 400)))
        await q.settle(*map(complete, await q.claim(400)))
    ended = tuple(q.edge(f"c{n}") for n in range(1200))
    (_, parent) = await q.store.put(
        [q.spec("last"), q.spec("p", after=(*ended, q.edge("last")))], flow="big"
    )
    assert parent.state is State.BLOCKED
    await q.settle(complete(await q.take()))
    lease = await q.take()
    assert (lease.id, len(lease.inputs)) == ("p", 1201)


async def test_one_that_many_wait_for_releases_all_of_them(q: Desk) -> None:
    parents = [f"p{n}" for n in range(1500)]
    await q.store.put([q.spec("root")], flow="fan", last=False)
    for start in range(0, 1500, 500):
        part = [q.spec(id, after=(q.edge("root"),)) for id in parents[start : start + 500]]
        await q.store.put(part, flow="fan", last=start == 1000)
    assert await q.counts() == {"waiting": 1, "blocked": 1500}
    await q.settle(complete(await q.take()))
    assert await q.counts() == {"waiting": 1500, "completed": 1}


async def test_a_member_whose_record_is_gone_has_told_its_parent(q: Desk) -> None:
    await q.store.put([q.spec("a", result_ttl_ms=1), q.spec("p", after=(q.edge("a"),))], flow="f1")
    await q.settle(complete(await q.take()))
    q.clock.advance(2)
    assert results(await q.take()) == {"a": b"1"}


async def test_a_member_whose_id_was_cancelled_before_is_the_new_one_to_its_parent(q: Desk) -> None:
    await q.put("a")
    await q.alter(Cancel(job=q.key("a")))
    await q.store.put([q.spec("p", after=(q.edge("a"),)), q.spec("a")], flow="f1")
    assert await q.states("p", "a") == ["blocked", "waiting"]


# ── across queues ─────────────────────────────────────────────────────────────────────────────────


async def test_a_parent_may_wait_for_jobs_of_other_queues(q: Desk) -> None:
    beside = q.beside("other")
    specs: list[JobSpec] = [
        q.spec("a"),
        beside.spec("b"),
        q.spec("p", after=(q.edge("a"), beside.edge("b"))),
    ]
    await q.store.put(specs, flow="f1")
    await q.settle(complete(await q.take(), b"1"))
    await beside.settle(complete(await beside.take(), b"2"))
    await q.tick()
    lease = await q.take()
    assert lease.inputs == (
        Input(job=q.key("a"), result=b"1"),
        Input(job=beside.key("b"), result=b"2"),
    )
    assert (await beside.get("b")).parents == (q.key("p"),)


async def test_a_flow_over_queues_is_staged_and_finished_whole(q: Desk) -> None:
    beside = q.beside("other")
    await q.store.put([beside.spec("b")], flow="f1", last=False)
    await q.store.put([q.spec("a")], flow="f1", last=False)
    assert (await beside.states("b"), await q.states("a")) == ([None], [None])
    await q.store.put([q.spec("p", after=(q.edge("a"), beside.edge("b")))], flow="f1")
    await q.tick()
    assert (await beside.states("b"), await q.states("a", "p")) == (
        ["waiting"],
        ["waiting", "blocked"],
    )


@pytest.mark.parametrize("order", list(permutations(["a", "b", "c", "d"]))[::5])
async def test_a_flow_of_several_levels_and_queues_finishes_whatever_the_order_of_its_members(
    q: Desk, order: tuple[str, ...]
) -> None:
    beside = q.beside("other")
    members = {
        "a": q.spec("a"),
        "b": beside.spec("b", after=(q.edge("a"),)),
        "c": q.spec("c", after=(beside.edge("b"), q.edge("a"))),
        "d": beside.spec("d", after=(q.edge("c"), beside.edge("b"))),
    }
    await q.store.put([members[id] for id in order], flow="f1")
    for desk, id in ((q, "a"), (beside, "b"), (q, "c"), (beside, "d")):
        await desk.settle(complete(await desk.take(), id.encode()))
        await q.tick()
    assert (await q.states("a", "c"), await beside.states("b", "d")) == (
        ["completed"] * 2,
        ["completed"] * 2,
    )


async def test_a_failure_crosses_queues(q: Desk) -> None:
    beside, third = q.beside("other"), q.beside("third")
    specs = [
        beside.spec("b"),
        q.spec("p", after=(beside.edge("b"),)),
        third.spec("top", after=(q.edge("p"),)),
    ]
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
    assert [str(e.kind) for e in await read_log(q.store, q.queue)] == [
        "accepted",
        "unblocked",
        "started",
        "completed",
    ]


async def test_answers_are_in_the_order_of_the_last_call_however_its_members_were_staged(
    q: Desk,
) -> None:
    await q.store.put([q.spec("b"), q.spec("a")], flow="f", last=False)
    answers = await q.store.put([q.spec("a"), q.spec("c"), q.spec("b"), q.spec("a")], flow="f")
    assert [answer.id for answer in answers] == ["a", "c", "b", "a"]
    assert await q.counts() == {"waiting": 3}
