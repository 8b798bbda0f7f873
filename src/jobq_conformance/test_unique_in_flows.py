"""Unique jobs inside flows: members share no lock, and a lock held elsewhere makes an edge to its
holder.
"""

from __future__ import annotations

import pytest

from jobq.core.records.commands import Cancel
from jobq.core.records.jobs import Input, JobSpec, UniqueMode, UniqueSpec
from jobq.core.records.states import State
from jobq.errors import InvalidJob
from jobq_conformance.families import results
from jobq_conformance.kit import SECOND, Desk, complete, fail, retry

MODES: list[UniqueMode] = ["simple", "throttle", "debounce", "keep_last"]


def lock(mode: UniqueMode = "simple", name: str = "L") -> UniqueSpec:
    return UniqueSpec(lock=name, mode=mode, ttl_ms=60 * SECOND if mode == "throttle" else None)


async def submit(q: Desk, *specs: JobSpec, flow: str = "f") -> None:
    await q.store.put(specs, flow=flow)


# ── two members with one lock ─────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("mode", MODES)
async def test_two_members_with_one_lock_are_refused_and_nothing_is_stored(
    q: Desk, mode: UniqueMode
) -> None:
    with pytest.raises(InvalidJob, match="'a' and 'b' of the flow have the same unique lock"):
        await submit(
            q,
            q.spec("a", unique=lock(mode)),
            q.spec("b", unique=lock(mode)),
            q.spec("p", after=(q.edge("a"),)),
        )
    assert await q.states("a", "b", "p") == [None, None, None]
    await q.tick()
    assert await q.counts() == {}
    assert not (await q.put_one("c", unique=lock(mode))).duplicate


async def test_two_members_with_one_lock_are_refused_when_one_waits_for_the_other(q: Desk) -> None:
    with pytest.raises(InvalidJob, match="the same unique lock"):
        await submit(
            q, q.spec("a", unique=lock(), after=(q.edge("b"),)), q.spec("b", unique=lock())
        )
    assert await q.counts() == {}


async def test_two_members_of_different_calls_are_refused_too(q: Desk) -> None:
    await q.store.put([q.spec("a", unique=lock())], flow="f", last=False)
    with pytest.raises(InvalidJob, match="the same unique lock"):
        await q.store.put([q.spec("b", unique=lock())], flow="f")
    await q.tick()
    assert await q.states("a", "b") == [None, None]


async def test_jobs_of_one_call_that_wait_for_each_other_are_refused_like_a_flow(q: Desk) -> None:
    with pytest.raises(InvalidJob, match="the same unique lock"):
        await q.store.put(
            [q.spec("a", unique=lock(), after=(q.edge("b"),)), q.spec("b", unique=lock())]
        )
    assert await q.counts() == {}


@pytest.mark.parametrize("mode", ["simple", "throttle", "debounce", "keep_last"])
async def test_a_job_with_the_lock_of_the_one_it_waits_for_is_refused_in_a_plain_call_too(
    q: Desk, mode: UniqueMode
) -> None:
    unique = UniqueSpec(lock="one", mode=mode, ttl_ms=SECOND if mode == "throttle" else None)
    with pytest.raises(InvalidJob, match="same unique lock"):
        await q.store.put(
            [q.spec("a", unique=unique), q.spec("b", unique=unique, after=(q.edge("a"),))]
        )
    assert await q.states("a", "b") == [None, None]


async def test_members_with_other_locks_or_in_other_queues_are_fine(q: Desk) -> None:
    beside = q.beside("other")
    await submit(
        q,
        q.spec("a", unique=lock()),
        q.spec("b", unique=lock(name="M")),
        beside.spec("c", unique=lock()),
    )
    assert await q.states("a", "b") == ["waiting", "waiting"]
    assert await beside.states("c") == ["waiting"]


async def test_the_same_member_sent_again_is_no_second_one(q: Desk) -> None:
    member = q.spec("a", unique=lock())
    await q.store.put([member], flow="f", last=False)
    await q.store.put([member, q.spec("p", after=(q.edge("a"),))], flow="f")
    assert await q.states("a", "p") == ["waiting", "blocked"]


# ── a lock that is held outside the flow ──────────────────────────────────────────────────────────


@pytest.mark.parametrize("started", [False, True])
@pytest.mark.parametrize("mode", ["simple", "throttle"])
async def test_a_member_whose_lock_is_held_becomes_an_edge_to_the_holder(
    q: Desk, mode: UniqueMode, started: bool
) -> None:
    await q.put_one("h", unique=lock(mode))
    lease = await q.take() if started else None
    await submit(
        q,
        q.spec("a", unique=lock(mode)),
        q.spec("b"),
        q.spec("p", after=(q.edge("a"), q.edge("b"))),
    )
    assert await q.states("a", "p") == [None, "blocked"]
    leases = {each.id: each for each in await q.claim(5)} | ({} if lease is None else {"h": lease})
    assert sorted(leases) == ["b", "h"]
    await q.settle(complete(leases["h"], b"1"), complete(leases["b"], b"2"))
    assert results(await q.take()) == {"a": b"1", "b": b"2"}


@pytest.mark.parametrize("mode", ["debounce", "keep_last"])
async def test_a_member_that_replaces_a_pending_job_becomes_an_edge_to_it(
    q: Desk, mode: UniqueMode
) -> None:
    await q.put_one("h", unique=lock(mode), delay_ms=SECOND, payload=b"1")
    await submit(
        q,
        q.spec("a", unique=lock(mode), delay_ms=SECOND, payload=b"2"),
        q.spec("p", after=(q.edge("a"),)),
    )
    q.clock.advance(SECOND)
    lease = await q.take()
    assert (lease.id, lease.payload) == ("h", b"2")
    await q.settle(complete(lease, b"3"))
    assert results(await q.take()) == {"a": b"3"}


@pytest.mark.parametrize("mode", ["debounce", "keep_last"])
async def test_a_member_whose_holder_has_started_is_a_job_of_its_own(
    q: Desk, mode: UniqueMode
) -> None:
    await q.put_one("h", unique=lock(mode))
    await q.settle(retry(await q.take(), SECOND))
    await submit(q, q.spec("a", unique=lock(mode)), q.spec("p", after=(q.edge("a"),)))
    q.clock.advance(SECOND)
    while (lease := await q.take()).id != "p":
        await q.settle(complete(lease, lease.id.encode()))
    assert results(lease) == {"a": b"a"}


async def test_a_member_kept_out_by_a_throttle_whose_record_is_gone_counts_as_completed(
    q: Desk,
) -> None:
    await q.run("h", unique=lock("throttle"), result_ttl_ms=SECOND)
    q.clock.advance(2 * SECOND)
    await q.tick()
    a, _ = await q.store.put(
        [q.spec("a", unique=lock("throttle")), q.spec("p", after=(q.edge("a"),))], flow="f"
    )
    assert (a.id, a.duplicate, a.state) == ("h", True, State.COMPLETED)
    lease = await q.take()
    assert (lease.id, lease.inputs) == ("p", (Input(job=q.key("a")),))
    await q.settle(complete(lease))


async def test_a_member_kept_out_by_an_ended_throttled_job_is_given_its_result(q: Desk) -> None:
    await q.put_one("h", unique=lock("throttle"))
    await q.settle(complete(await q.take(), b"7"))
    await submit(q, q.spec("a", unique=lock("throttle")), q.spec("p", after=(q.edge("a"),)))
    assert results(await q.take()) == {"a": b"7"}


@pytest.mark.parametrize("end", ["failed", "cancelled"])
async def test_the_end_of_the_holder_is_the_end_of_the_member(q: Desk, end: str) -> None:
    await q.put_one("h", unique=lock())
    await submit(q, q.spec("a", unique=lock()), q.spec("p", after=(q.edge("a"),)))
    if end == "failed":
        await q.settle(fail(await q.take(), "no such tenant"))
    else:
        await q.alter(Cancel(job=q.key("h")))
    failure = (await q.get("p")).failure
    assert failure is not None
    assert failure.reason == "child"
    assert "job h (task)" in failure.message


async def test_a_lock_held_in_another_queue_of_the_flow_makes_an_edge_across(q: Desk) -> None:
    beside = q.beside("other")
    await beside.put_one("h", unique=lock())
    await submit(q, beside.spec("a", unique=lock()), q.spec("p", after=(beside.edge("a"),)))
    await beside.settle(complete(await beside.take(), b"5"))
    await q.tick()
    assert results(await q.take()) == {"a": b"5"}


async def test_a_throttle_without_a_record_in_another_queue_holds_up_no_flow(q: Desk) -> None:
    beside = q.beside("other")
    await beside.run("h", unique=lock("throttle"), result_ttl_ms=SECOND)
    q.clock.advance(2 * SECOND)
    await q.tick()
    await submit(
        q, beside.spec("a", unique=lock("throttle")), q.spec("p", after=(beside.edge("a"),))
    )
    await q.tick()
    assert (await q.take()).id == "p"
