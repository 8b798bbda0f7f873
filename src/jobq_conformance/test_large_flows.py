"""Flows that are too large for one step of a store: submitted by several, and still whole."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import pytest

from jobq.core.records.jobs import Edge, JobSpec, PutResult, UniqueSpec
from jobq.core.records.states import State
from jobq.errors import ConfigError, InvalidJob, QueueFull
from jobq_conformance.bounded import bound
from jobq_conformance.kit import DAY, MINUTE, Desk, complete, drain, fail
from jobq_conformance.roles import needs

pytestmark = needs("flows")

MANY = 700
"""Children. A step of a store has up to 500 members and edges."""


def children(q: Desk, n: int = MANY, **options: object) -> list[JobSpec]:
    return [q.spec(f"c{i}", **options) for i in range(n)]


def edges(q: Desk, n: int = MANY) -> tuple[Edge, ...]:
    return tuple(q.edge(f"c{i}") for i in range(n))


async def submit(q: Desk, specs: Sequence[JobSpec], flow: str = "big") -> list[PutResult]:
    """Submit a flow by calls of 400 jobs. Returns the results of the last one."""
    results: list[PutResult] = []
    for start in range(0, len(specs), 400):
        chunk = specs[start : start + 400]
        results = await q.store.put(chunk, flow=flow, last=start + 400 >= len(specs))
    return results


async def test_a_parent_gets_the_results_of_all_children_in_the_order_of_its_edges(
    q: Desk,
) -> None:
    results = await submit(q, [*children(q), q.spec("p", after=edges(q))])
    assert [each.state for each in results][-2:] == [State.WAITING, State.BLOCKED]
    assert await q.counts() == {"waiting": MANY, "blocked": 1}
    for n in (400, MANY - 400):
        leases = await q.claim(n)
        await q.settle(*(complete(lease, lease.id.encode()) for lease in leases))
    lease = await q.take()
    assert lease.id == "p"
    assert [each.result for each in lease.inputs] == [f"c{n}".encode() for n in range(MANY)]
    await q.settle(complete(lease))


@pytest.mark.parametrize("seed", range(2))
async def test_members_come_in_any_order(q: Desk, seed: int) -> None:
    beside = q.beside("other")
    specs = [
        *children(q, 600),
        *(beside.spec(f"b{n}", after=(q.edge(f"c{n}"), q.edge("c7"))) for n in range(50)),
        q.spec("p", after=(*edges(q, 600), *(beside.edge(f"b{n}") for n in range(50)))),
        beside.spec("top", after=(q.edge("p"), beside.edge("b3"), q.edge("c3"))),
    ]
    random.Random(seed).shuffle(specs)
    await submit(q, specs)
    await q.tick()
    assert await q.counts() == {"waiting": 600, "blocked": 1}
    assert await beside.counts() == {"blocked": 51}
    done = []
    for _ in range(3):
        done += await drain(q)
        await q.tick()
        done += await drain(beside)
        await q.tick()
    assert done[-2:] == ["p", "top"]
    assert len(done) == 652


async def test_a_member_that_is_a_duplicate_or_holds_no_lock_is_represented_by_the_other_job(
    q: Desk,
) -> None:
    unique = UniqueSpec(lock="L")
    await q.run("c1")  # completed: its result counts
    await q.put("c2")  # waiting
    await q.put("holder", unique=unique)
    specs = [
        *(spec for spec in children(q, 700) if spec.id != "c9"),
        q.spec("p", after=edges(q, 700)),
    ]
    random.Random(1).shuffle(specs)
    # The last members that wait are stored first: here the one that is represented.
    late = q.spec("late", after=(q.edge("c9"), q.edge("c1")))
    await submit(q, [late, *specs, q.spec("c9", unique=unique, after=(q.edge("c0"),))])
    assert await q.states("c9", "holder", "p") == [None, "waiting", "blocked"]
    done = await drain(q)
    assert done[-1] in ("p", "late")
    assert "c1" not in done
    assert len(done) == 700 + 1  # all but c1 and c9, the holder, and the two parents
    parent = await q.get("p")
    assert parent.state is State.COMPLETED
    assert q.key("holder") in parent.children or q.key("c9") in parent.children


async def test_a_parent_of_jobs_that_have_all_ended_can_start_at_once(q: Desk) -> None:
    await q.put(*(f"c{n}" for n in range(600)))
    await drain(q)
    results = await submit(q, [q.spec("a"), q.spec("p", after=edges(q, 600))])
    assert [each.state for each in results] == [State.WAITING, State.WAITING]
    lease = next(each for each in await q.claim(2) if each.id == "p")
    assert len(lease.inputs) == 600


@pytest.mark.parametrize("id", ["c5", "outside"])
async def test_a_child_that_failed_before_fails_its_parent(q: Desk, id: str) -> None:
    await q.put(id)
    await q.settle(fail(await q.take()))
    after = (*edges(q, 700), *([] if id == "c5" else [q.edge(id)]))
    await submit(q, [*children(q, 700), q.spec("p", after=after)])
    assert await q.states("p", id, "c699") == ["failed", "failed", "waiting"]


async def test_an_edge_to_nobody_refuses_the_flow_and_nothing_is_left(q: Desk) -> None:
    await bound(q, 700)
    with pytest.raises(InvalidJob, match="nobody"):
        await submit(q, [*children(q, 600), q.spec("p", after=(*edges(q, 600), q.edge("nobody")))])
    assert await q.counts() == {}
    await submit(q, [*children(q, 699), q.spec("p", after=edges(q, 699))])  # the places are free
    assert await q.counts() == {"waiting": 699, "blocked": 1}
    with pytest.raises(QueueFull):
        await q.store.put([q.spec("more")], flow="more")
    await drain(q)
    assert {each.full for each in await q.put(*(f"n{n}" for n in range(700)))} == {None}


@pytest.mark.parametrize("wrong", ["lock", "mode"])
async def test_members_that_do_not_fit_together_refuse_the_flow(q: Desk, wrong: str) -> None:
    odd = {"unique": UniqueSpec(lock="L")} if wrong == "lock" else {"key": "k"}
    first = [q.spec("odd", **odd), *children(q, 399)]
    last = [q.spec("d", unique=UniqueSpec(lock="L")), *(q.spec(f"e{n}") for n in range(399))]
    with pytest.raises(InvalidJob if wrong == "lock" else ConfigError):
        await submit(q, [*first, *last])
    await q.tick()
    assert await q.counts() == {}


async def test_submitting_again_changes_nothing(q: Desk) -> None:
    specs = [*children(q, 600), q.spec("p", after=edges(q, 600))]
    await submit(q, specs)
    await q.settle(complete(await q.take()))
    again = await submit(q, specs)
    assert len(again) == 201
    assert await q.counts() == {"waiting": 599, "completed": 1, "blocked": 1}
    assert len(await q.events("p")) == 1


async def test_a_flow_that_is_never_submitted_is_swept_and_its_places_are_free(q: Desk) -> None:
    await bound(q, 800)
    for start in range(0, 800, 400):
        await q.store.put(
            [q.spec(f"c{n}") for n in range(start, start + 400)], flow="big", last=False
        )
    q.clock.advance(7 * DAY)
    await q.tick()
    q.clock.advance(MINUTE)
    await q.tick()
    assert {each.full for each in await q.put(*(f"n{n}" for n in range(800)))} == {None}


@pytest.mark.parametrize("when", ["before", "between the steps"])
async def test_a_flow_whose_caller_dies_is_whole_or_not_there(q: Desk, when: str) -> None:
    specs = [*children(q), q.spec("p", after=edges(q))]
    await q.store.put(specs[:600], flow="big", last=False)
    last = asyncio.ensure_future(q.store.put(specs[600:], flow="big"))
    while when != "before" and not last.done() and await q.counts() == {}:
        pass
    last.cancel()
    await asyncio.wait([last])
    async with asyncio.timeout(60):  # a server may still be working on the call
        while (found := await q.counts()) != {"waiting": MANY, "blocked": 1}:
            if found == {}:
                await q.store.put(specs[600:], flow="big")
            q.clock.advance(MINUTE)
            await q.tick()
    assert len(await drain(q)) == MANY + 1


async def test_other_calls_are_served_while_a_flow_is_submitted(
    q_twice: tuple[Desk, Desk],
) -> None:
    q, other = q_twice[0], q_twice[1].beside("other")
    specs = [*children(q, 1_500), q.spec("p", after=edges(q, 1_500))]
    for start in range(0, 1_500, 400):
        await q.store.put(specs[start : start + 400], flow="big", last=False)
    last = asyncio.ensure_future(q.store.put(specs[-1:], flow="big"))
    served = 0
    while not last.done():
        await other.put(f"job-{served}")
        served += 1
    await last
    assert served >= 4  # by a single step, one or two
    assert await q.counts() == {"waiting": 1_500, "blocked": 1}
