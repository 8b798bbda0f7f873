"""Flows that fail: a child fails, or a parent is cancelled."""

from __future__ import annotations

import pytest

from jobq.core.records.commands import Cancel, Remove, Rerun
from jobq.core.records.jobs import Input
from jobq.core.records.states import State
from jobq_conformance.families import family, results, take
from jobq_conformance.kit import SECOND, Desk, complete, fail, retry
from jobq_conformance.roles import needs

pytestmark = needs("flows")

# ── when a child fails ────────────────────────────────────────────────────────────────────────────


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
    await q.store.put(
        [
            q.spec("a"),
            *(q.spec(f"p{n}", after=(q.edge(f"p{n - 1}" if n else "a"),)) for n in range(4)),
        ]
    )
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


async def test_a_parent_that_fails_with_its_child_names_its_own_attempt(q: Desk) -> None:
    await family(q, "a")
    await q.settle(retry(await q.take()))
    last = await q.take()
    q.clock.advance(SECOND)
    await q.settle(fail(last))
    failure = (await q.get("p")).failure
    assert failure is not None
    assert (failure.attempt, failure.at_ms) == (0, q.clock.now_ms)


async def test_a_failure_that_a_parent_is_given_names_the_childs_attempt_and_when_it_ended(
    q: Desk,
) -> None:
    await family(q, "a", on_child_failure="continue")
    await q.settle(retry(await q.take()))
    last = await q.take()
    q.clock.advance(SECOND)
    ended = q.clock.now_ms
    await q.settle(fail(last))
    q.clock.advance(SECOND)
    (given,) = (await q.take()).inputs
    assert given.failure is not None
    assert (given.failure.attempt, given.failure.at_ms) == (2, ended)


@pytest.mark.parametrize("way", ["stalled", "expired"])
async def test_a_child_that_stalls_or_expires_has_failed(q: Desk, way: str) -> None:
    await q.store.put([q.spec("a", max_stalls=0, ttl_ms=SECOND), q.spec("p", after=(q.edge("a"),))])
    if way == "stalled":
        await q.take(lease_ms=SECOND)
    q.clock.advance(2 * SECOND)
    await q.tick()
    assert await q.states("a", "p") == ["failed", "failed"]


@pytest.mark.parametrize("command", [Cancel, Remove])
async def test_cancelling_or_removing_a_child_fails_the_parent(
    q: Desk, command: type[Cancel] | type[Remove]
) -> None:
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


async def test_purging_the_queue_leaves_no_parent_waiting_forever(q: Desk) -> None:
    await family(q, "a", "b")
    await q.store.purge_pending(q.queue)
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


# ── cancelling a parent ───────────────────────────────────────────────────────────────────────────


async def test_a_blocked_job_is_cancelled_at_once_and_its_children_go_on(q: Desk) -> None:
    await family(q, "a")
    assert await q.alter(Cancel(job=q.key("p")))
    assert await q.states("p", "a") == ["cancelled", "waiting"]
    await q.settle(complete(await q.take()))
    assert await q.state("p") is State.CANCELLED
    assert await q.claim() == []


async def test_cancelling_cascades_on_request(q: Desk) -> None:
    await q.store.put(
        [
            q.spec("a"),
            q.spec("b", after=(q.edge("a"),)),
            q.spec("c"),
            q.spec("p", after=(q.edge("b"), q.edge("c"))),
        ]
    )
    await q.put("other")
    assert await q.alter(Cancel(job=q.key("p"), cascade=True))
    assert await q.states("p", "a", "b", "c", "other") == [
        "cancelled",
        "cancelled",
        "cancelled",
        "cancelled",
        "waiting",
    ]


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
    await q.store.put(
        [q.spec(id, after=(q.edge(f"s{n - 1}"),) if n else ()) for n, id in enumerate(ids)]
    )
    assert await q.alter(Cancel(job=q.key(ids[-1]), cascade=True))
    await q.tick()
    assert await q.counts() == {"cancelled": 1200}


async def test_a_failure_goes_up_a_long_chain(q: Desk) -> None:
    ids = [f"s{n}" for n in range(1200)]
    await q.store.put(
        [q.spec(id, after=(q.edge(f"s{n - 1}"),) if n else ()) for n, id in enumerate(ids)]
    )
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


async def test_a_new_life_of_a_cancelled_parent_waits_again(q: Desk) -> None:
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
