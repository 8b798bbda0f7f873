"""Large flows that several callers submit at once, or that others change meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from jobq.core.records.commands import Revive
from jobq.core.records.jobs import Edge, JobSpec, PutResult
from jobq.core.records.queues import Limits, QueueConfig, RetentionData
from jobq.errors import InvalidJob
from jobq_conformance.kit import HOUR, MINUTE, Desk, block, complete, drain, fail
from jobq_conformance.roles import needs

pytestmark = [needs("flows"), pytest.mark.topology]

MANY = 600
"""Children. A step of a store has up to 500 members and edges."""


def children(q: Desk, n: int = MANY) -> list[JobSpec]:
    return [q.spec(f"c{i}") for i in range(n)]


def edges(q: Desk, n: int = MANY) -> tuple[Edge, ...]:
    return tuple(q.edge(f"c{i}") for i in range(n))


async def submit(
    q: Desk, specs: Sequence[JobSpec], flow: str = "big", size: int = 200
) -> list[PutResult]:
    """Submit a flow by calls of `size` jobs. Returns the results of the last one."""
    results: list[PutResult] = []
    for start in range(0, len(specs), size):
        chunk = specs[start : start + size]
        results = await q.store.put(chunk, flow=flow, last=start + size >= len(specs))
    return results


async def test_each_member_runs_once_if_two_callers_submit_the_flow(
    q_twice: tuple[Desk, Desk],
) -> None:
    q, other = q_twice
    await q.store.declare(
        q.queue,
        QueueConfig(
            retention=RetentionData(completed_ms=0),
            limits=Limits(max_waiting=2 * MANY),
        ),
    )
    specs = [*children(q), q.spec("p", after=edges(q, 2))]
    await q.store.put(specs[:-1], flow="big", last=False)
    # The second caller still stages members when the first one has submitted the flow.
    callers = asyncio.gather(
        q.store.put(specs[-1:], flow="big"), other.store.put(specs, flow="big")
    )
    done = []
    while not callers.done():
        done += await drain(q)
        await q.tick()  # deletes the records of completed jobs, so their ids are free
    await callers
    done += await drain(q)
    assert len(done) == MANY + 1
    assert set(done) == {spec.id for spec in specs}
    results = await q.put(*(f"n{n}" for n in range(2 * MANY)))  # no place is still reserved
    assert {each.full for each in results} == {None}


@pytest.mark.parametrize("at_once", [False, True])
async def test_if_one_caller_is_refused_the_other_does_not_store_a_part(
    q: Desk, at_once: bool
) -> None:
    """Both use one handle, as the clients of a jq-server do."""
    begin, end = [q.spec("1"), q.spec("2")], [q.spec("3"), q.spec("4")]
    wrong = q.spec("5", after=(q.edge("nobody"),))
    await q.store.put(begin, flow="f", last=False)
    if not at_once:
        await q.store.put(begin, flow="f", last=False)
    with pytest.raises(InvalidJob, match="nobody"):
        await q.store.put([*(begin if at_once else end), wrong], flow="f")
    with pytest.raises(InvalidJob, match="submit it again"):
        await q.store.put(end, flow="f")
    assert await q.counts() == {}
    await q.store.put(end, flow="f")  # no caller is in the middle of it now: this is all of it
    assert await q.claim_ids() == ["3", "4"]


async def test_a_refused_caller_may_submit_the_flow_while_another_is_in_the_middle(
    q: Desk,
) -> None:
    begin, end = [q.spec("1"), q.spec("2")], [q.spec("3"), q.spec("4")]
    for _ in range(2):
        await q.store.put(begin, flow="f", last=False)
    with pytest.raises(InvalidJob, match="nobody"):
        await q.store.put([q.spec("5", after=(q.edge("nobody"),))], flow="f")
    await q.store.put(begin, flow="f", last=False)
    for _ in range(2):
        await q.store.put(end, flow="f")
    assert await q.claim_ids() == ["1", "2", "3", "4"]


async def test_two_flows_share_a_member_with_many_edges(q_twice: tuple[Desk, Desk]) -> None:
    q, other = q_twice
    many = 2_200
    await q.store.put(children(q, many))
    parent = [q.spec("p", after=edges(q, many))]
    await asyncio.gather(q.store.put(parent, flow="one"), other.store.put(parent, flow="two"))
    await q.tick()
    assert await q.counts() == {"waiting": many, "blocked": 1}
    assert len((await q.get("p")).children) == many


async def test_a_late_call_of_a_flow_that_was_swept_is_refused(q: Desk) -> None:
    await q.store.put([q.spec("a"), q.spec("b")], flow="f1", last=False)
    q.clock.advance(2 * HOUR)
    await q.tick()
    q.clock.advance(MINUTE)
    await q.tick()
    with pytest.raises(InvalidJob, match="submit it again"):
        await q.store.put([q.spec("c")], flow="f1")
    assert await q.counts() == {}
    await q.store.put([q.spec("a"), q.spec("b")], flow="f1", last=False)
    await q.store.put([q.spec("c")], flow="f1")
    assert await q.counts() == {"waiting": 3}


async def test_a_revived_parent_waits_for_all_children_also_if_it_failed_at_once(q: Desk) -> None:
    await q.put("x")
    await q.settle(fail(await q.take()))
    await submit(q, [*children(q), q.spec("p", after=(q.edge("x"), *edges(q)))])
    assert await q.state("p") == "failed"
    assert len((await q.get("p")).children) == MANY + 1
    assert await q.alter(Revive(job=q.key("x")))
    assert await q.alter(Revive(job=q.key("p")))
    for n in (300, 301):  # the last children end last
        leases = await q.claim(n)
        assert "p" not in {lease.id for lease in leases}
        await q.settle(*(complete(lease, lease.id.encode()) for lease in leases))
    lease = await q.take()
    assert lease.id == "p"
    names = ["x", *(f"c{n}" for n in range(MANY))]
    assert [each.result for each in lease.inputs] == [name.encode() for name in names]
    await q.settle(complete(lease))


@pytest.mark.parametrize("n", [3, MANY])
async def test_of_several_edges_to_one_job_the_first_counts(q: Desk, n: int) -> None:
    twice = (q.edge("c0"), q.edge("c0", data=False), *edges(q, n), q.edge("c1"))
    await submit(q, [*children(q), q.spec("p", after=twice)])
    done = []
    while "p" not in done:
        leases = await q.claim(400)
        done = [lease.id for lease in leases]
        await q.settle(*(complete(each, each.id.encode()) for each in leases if each.id != "p"))
    (lease,) = [each for each in leases if each.id == "p"]
    assert [each.result for each in lease.inputs] == [f"c{i}".encode() for i in range(n)]
    await drain(q)
    await q.put("late")
    await q.settle(block(lease, after=(q.edge("late"),)))  # one more edge fits behind the others
    assert await drain(q) == ["late", "p"]


async def test_a_queue_that_is_obliterated_meanwhile_has_the_mode_of_its_jobs(q: Desk) -> None:
    specs = [q.spec(f"k{n}", key=f"{n % 7}") for n in range(1_300)]
    for start in range(0, 1_200, 400):
        await q.store.put(specs[start : start + 400], flow="big", last=False)
    last = asyncio.ensure_future(q.store.put(specs[1_200:], flow="big"))
    while not await q.counts() and not last.done():
        pass
    while not await q.store.obliterate(q.queue, force=True):
        pass
    await last
    if await q.counts():
        (record,) = await q.store.queues(q.queue.tenant)
        assert record.mode == "keyed"
        assert len(await drain(q)) > 0
