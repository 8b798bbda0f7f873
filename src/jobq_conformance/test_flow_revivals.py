"""Revive: failed members of a flow run again, and what is finished stays."""

from __future__ import annotations

from typing import Literal

import pytest

from jobq.core.records.commands import Cancel, Remove, Rerun, Revive, SendSignal
from jobq.core.records.jobs import Edge, Note, QueueName, UniqueSpec
from jobq.core.records.states import State
from jobq_conformance.families import family, results, take
from jobq_conformance.kit import DAY, Desk, block, complete, fail, ref
from jobq_conformance.roles import needs

pytestmark = needs("flows", "operators")


async def revive(q: Desk, *ids: str) -> None:
    """Revive jobs one after the other."""
    for id in ids:
        assert await q.altered(Revive(job=q.key(id))) == "done", id


def after(q: Desk, *ids: str) -> tuple[Edge, ...]:
    """Edges to jobs whose results are not needed."""
    return tuple(Edge(q.key(id), data=False) for id in ids)


async def failed_family(q: Desk, **options: object) -> None:
    """A parent whose child `a` has completed and whose child `b` has failed."""
    await family(q, "a", "b", parent="p", **options)
    leases = await take(q, "a", "b")
    await q.settle(complete(leases["a"], b"A"))
    await q.settle(fail(leases["b"]))


async def test_a_revived_parent_waits_for_the_failed_child_and_keeps_the_other_result(
    q: Desk,
) -> None:
    await failed_family(q)
    assert await q.states("a", "b", "p") == ["completed", "failed", "failed"]
    await revive(q, "b", "p")
    assert await q.states("a", "b", "p") == ["completed", "waiting", "blocked"]
    await q.settle(complete((await take(q, "b"))["b"], b"B"))
    lease = (await take(q, "p"))["p"]
    assert results(lease) == {"a": b"A", "b": b"B"}
    assert (lease.life, lease.failures) == (1, 0)
    await q.settle(complete(lease))
    assert (await q.get("p")).failure is None
    assert await q.kinds("p") == [
        "accepted",
        "failed",
        "rerun",
        "unblocked",
        "started",
        "completed",
    ]


async def test_a_revived_chain_runs_to_its_end(q: Desk) -> None:
    await q.store.put(
        [
            q.spec("a"),
            q.spec("b", after=(q.edge("a"),)),
            q.spec("c", after=(q.edge("b"),)),
            q.spec("d", after=(q.edge("c"),)),
        ]
    )
    await q.settle(complete(await q.take(), b"A"))
    await q.settle(fail(await q.take()))
    assert await q.states("a", "b", "c", "d") == ["completed", "failed", "failed", "failed"]
    await revive(q, "b", "c", "d")
    assert await q.states("a", "b", "c", "d") == ["completed", "waiting", "blocked", "blocked"]
    lease = await q.take()
    assert (lease.id, results(lease)) == ("b", {"a": b"A"})
    await q.settle(complete(lease, b"B"))
    for id, above in (("c", {"b": b"B"}), ("d", {"c": b"C"})):
        lease = await q.take()
        assert (lease.id, results(lease)) == (id, above)
        await q.settle(complete(lease, id.upper().encode()))
    assert await q.counts() == {"completed": 4}


async def test_a_child_that_completes_before_its_parent_is_revived_counts(q: Desk) -> None:
    await failed_family(q)
    await revive(q, "b")
    await q.settle(complete((await take(q, "b"))["b"], b"B"))
    await revive(q, "p")
    assert results((await take(q, "p"))["p"]) == {"a": b"A", "b": b"B"}


async def test_a_parent_fails_again_if_its_child_is_not_revived_or_fails_again(q: Desk) -> None:
    await failed_family(q)
    await revive(q, "p")
    parent = await q.get("p")
    assert (parent.state, parent.life) == (State.FAILED, 1)
    assert parent.failure
    assert parent.failure.reason == "child"
    await revive(q, "b", "p")
    await q.settle(fail((await take(q, "b"))["b"]))
    assert await q.states("b", "p") == ["failed", "failed"]


async def test_a_parent_fails_again_if_its_failed_child_is_gone(q: Desk) -> None:
    await failed_family(q)
    assert await q.alter(Remove(job=q.key("b")))
    await revive(q, "p")
    failure = (await q.get("p")).failure
    assert failure
    assert "job b, which this job waits for, is gone" in failure.message


async def test_a_parent_fails_again_if_a_failed_child_without_a_result_is_gone(q: Desk) -> None:
    await q.store.put([q.spec("a"), q.spec("b"), q.spec("p", after=after(q, "a", "b"))])
    leases = await take(q, "a", "b")
    await q.settle(complete(leases["a"]))
    await q.settle(fail(leases["b"]))
    assert await q.alter(Remove(job=q.key("a")))
    assert await q.alter(Remove(job=q.key("b")))
    await revive(q, "p")
    parent = await q.get("p")
    assert parent.state is State.FAILED
    assert parent.failure
    assert "job b, which this job waits for, is gone" in parent.failure.message


async def test_a_completed_child_without_a_result_may_be_gone(q: Desk) -> None:
    await q.store.put([q.spec("a"), q.spec("p", after=after(q, "a"))])
    await q.settle(complete((await take(q, "a"))["a"]))
    await q.settle(fail((await take(q, "p"))["p"]))
    assert await q.alter(Remove(job=q.key("a")))
    await revive(q, "p")
    assert await q.states("p") == ["waiting"]


async def test_a_result_of_a_completed_child_stays_though_its_record_is_gone(q: Desk) -> None:
    await failed_family(q)
    assert await q.alter(Remove(job=q.key("a")))
    await revive(q, "b", "p")
    await q.settle(complete((await take(q, "b"))["b"], b"B"))
    assert results((await take(q, "p"))["p"]) == {"a": b"A", "b": b"B"}


@pytest.mark.parametrize("policy", ["ignore", "continue"])
async def test_a_lenient_parent_gets_the_new_result(
    q: Desk, policy: Literal["ignore", "continue"]
) -> None:
    await failed_family(q, on_child_failure=policy)
    await q.settle(fail((await take(q, "p"))["p"]))  # it ran without the result, and failed
    await revive(q, "b", "p")
    await q.settle(complete((await take(q, "b"))["b"], b"B"))
    lease = (await take(q, "p"))["p"]
    assert results(lease) == {"a": b"A", "b": b"B"}
    assert not any(given.failure for given in lease.inputs)


async def test_a_lenient_parent_is_revived_without_its_child(q: Desk) -> None:
    await failed_family(q, on_child_failure="continue")
    await q.settle(fail((await take(q, "p"))["p"]))
    await revive(q, "p")
    lease = (await take(q, "p"))["p"]
    assert [given.failure is not None for given in lease.inputs] == [False, True]


async def test_a_member_that_failed_by_itself_runs_again_with_its_results(q: Desk) -> None:
    await family(q, "a")
    await q.settle(complete(await q.take(), b"A"))
    await q.settle(fail(await q.take()))
    await revive(q, "p")
    assert await q.state("p") is State.WAITING
    assert results(await q.take()) == {"a": b"A"}


async def test_a_parent_waits_for_children_that_had_not_ended_when_it_failed(q: Desk) -> None:
    await family(q, "a", "b", "c")
    leases = await take(q, "a", "b", "c")
    await q.settle(fail(leases["b"]))
    assert await q.state("p") is State.FAILED
    await revive(q, "b", "p")
    await q.settle(complete(leases["a"], b"A"))
    again = await take(q, "b")
    await q.settle(complete(again["b"], b"B"))
    assert await q.state("p") is State.BLOCKED
    await q.settle(complete(leases["c"], b"C"))
    assert results((await take(q, "p"))["p"]) == {"a": b"A", "b": b"B", "c": b"C"}


async def test_members_of_several_queues_are_revived(q: Desk) -> None:
    other = Desk(q.store, QueueName(q.queue.tenant, "elsewhere"), q.clock, q.audited)
    await q.store.put(
        [
            other.spec("a"),
            other.spec("b"),
            q.spec("p", after=(other.edge("a"), other.edge("b"))),
            other.spec("top", after=(q.edge("p"),)),
        ]
    )
    leases = await take(other, "a", "b")
    await other.settle(complete(leases["a"], b"A"))
    await other.settle(fail(leases["b"]))
    assert [await q.state("p"), await other.state("top")] == [State.FAILED, State.FAILED]
    await revive(other, "b")
    await revive(q, "p")
    await revive(other, "top")
    assert [await q.state("p"), await other.state("top")] == [State.BLOCKED, State.BLOCKED]
    await other.settle(complete((await take(other, "b"))["b"], b"B"))
    lease = (await take(q, "p"))["p"]
    assert results(lease) == {"a": b"A", "b": b"B"}
    await q.settle(complete(lease, b"P"))
    assert results((await take(other, "top"))["top"]) == {"p": b"P"}


async def test_a_cancelled_flow_is_revived(q: Desk) -> None:
    await family(q, "a", "b")
    leases = await take(q, "a", "b")
    await q.settle(complete(leases["a"], b"A"))
    await q.settle(complete(leases["b"], b"B"))
    await q.put("c")
    await q.store.put([q.spec("top", after=(q.edge("c"), q.edge("p")))])
    assert await q.alter(Cancel(job=q.key("top"), cascade=True))
    assert await q.states("a", "b", "p", "c", "top") == [
        "completed",
        "completed",
        "cancelled",
        "cancelled",
        "cancelled",
    ]
    await revive(q, "p", "c", "top")
    leases = await take(q, "p", "c")
    assert results(leases["p"]) == {"a": b"A", "b": b"B"}
    await q.settle(complete(leases["p"], b"P"), complete(leases["c"], b"C"))
    assert results((await take(q, "top"))["top"]) == {"c": b"C", "p": b"P"}


async def test_what_a_member_had_saved_and_received_stays(q: Desk) -> None:
    """The children that a handler adds are noted as signals, so it finds them again."""
    await q.put("p")
    lease = await q.take()
    await q.put("child")
    await q.store.note([Note(lease=ref(lease), saved=b"saved", steps=(("charge", b"7"),))])
    assert await q.alter(SendSignal(job=q.key("p"), name="paid", value=b"1"))
    await q.settle(block(lease, after=(q.edge("child"),)))
    await q.settle(fail(await q.take()))
    assert await q.state("p") is State.FAILED
    await revive(q, "child", "p")
    await q.settle(complete((await take(q, "child"))["child"], b"C"))
    lease = (await take(q, "p"))["p"]
    assert (lease.saved, dict(lease.steps), lease.signals) == (
        b"saved",
        {"charge": b"7"},
        (("paid", b"1"),),
    )
    assert results(lease) == {"child": b"C"}


async def test_a_member_that_was_cancelled_while_it_waited_for_a_signal_runs_again(
    q: Desk,
) -> None:
    await failed_family(q, on_child_failure="ignore")
    await q.settle(block((await take(q, "p"))["p"], signal="paid"))
    assert await q.alter(Cancel(job=q.key("p")))
    await revive(q, "b", "p")
    await q.settle(complete((await take(q, "b"))["b"], b"B"))
    assert results((await take(q, "p"))["p"]) == {"a": b"A", "b": b"B"}


async def test_completed_and_unfinished_jobs_are_not_revived(q: Desk) -> None:
    await family(q, "a", "b")
    leases = await take(q, "a", "b")
    await q.settle(complete(leases["a"]))
    for id in ("a", "b", "p"):
        assert await q.altered(Revive(job=q.key(id))) == "late"
    assert await q.altered(Revive(job=q.key("nobody"))) == "missing"
    assert await q.states("a", "b", "p") == ["completed", "active", "blocked"]


async def test_a_member_whose_lock_another_job_holds_is_not_revived(q: Desk) -> None:
    unique = UniqueSpec(lock="l", mode="simple")
    await family(q, "a", unique=unique)
    await q.settle(fail(await q.take()))
    await q.put_one("other", unique=unique)
    assert await q.altered(Revive(job=q.key("p"))) == "late"
    assert await q.alter(Cancel(job=q.key("other")))
    await revive(q, "a", "p")
    assert (await q.put_one("third", unique=unique)).duplicate


async def test_a_revived_job_can_be_cancelled_and_rerun(q: Desk) -> None:
    await failed_family(q)
    await revive(q, "b", "p")
    assert await q.alter(Cancel(job=q.key("p"), cascade=True))
    assert await q.states("b", "p") == ["cancelled", "cancelled"]
    assert await q.alter(Rerun(job=q.key("p")))
    assert await q.state("p") is State.WAITING


async def test_a_delay_of_a_revived_member_begins_when_it_is_unblocked(q: Desk) -> None:
    await failed_family(q, delay_ms=DAY)
    await revive(q, "b", "p")
    q.clock.advance(DAY)
    await q.settle(complete((await take(q, "b"))["b"], b"B"))
    assert await q.state("p") is State.DELAYED
