"""Dead letters: failed jobs stay, can be run again or purged, and may be copied to another
queue.
"""

from __future__ import annotations

import pytest

from jobq.core.records.commands import Cancel, Remove, Rerun
from jobq.core.records.jobs import Edge
from jobq.core.records.queues import QueueConfig
from jobq.core.records.states import State
from jobq_conformance.kit import SECOND, Desk, complete, fail, read_all, retry
from jobq_conformance.roles import needs

pytestmark = [needs("dead_letters"), pytest.mark.topology]


async def forwarding(q: Desk) -> Desk:
    """The queue where this one's failed jobs are copied to."""
    graves = q.beside("graves")
    await q.store.declare(q.queue, QueueConfig(dead_letters="graves"))
    return graves


async def test_failed_jobs_are_the_dead_letters_of_their_queue(q: Desk) -> None:
    await q.put("a", "b")
    a, b = await q.claim(2)
    await q.settle(fail(a, "bad"), complete(b))
    (letter,) = await read_all(q.store, q.queue, State.FAILED)
    assert letter.id == "a"
    assert letter.failure is not None
    assert letter.failure.message == "bad"


async def test_a_dead_letter_can_be_run_again_or_purged(q: Desk) -> None:
    await q.put("a", "b")
    await q.settle(*(fail(lease) for lease in await q.claim(2)))
    assert await q.store.alter([Rerun(job=q.key("a")), Remove(job=q.key("b"))]) == ["done", "done"]
    assert await q.states("a", "b") == ["waiting", None]


async def test_a_failed_job_is_copied_and_the_original_stays_failed(q: Desk) -> None:
    graves = await forwarding(q)
    await q.put_one("a", name="charge", payload=b"[[7],{}]", codec="json")
    await q.settle(fail(await q.take()))
    await q.tick()
    assert await q.state("a") is State.FAILED
    (copy,) = await read_all(q.store, graves.queue)
    assert (copy.state, copy.name, copy.payload, copy.codec) == (
        State.WAITING,
        "charge",
        b"[[7],{}]",
        "json",
    )
    assert copy.origin == "work/a"
    assert (copy.attempt, copy.failures) == (0, 0)
    await graves.settle(complete(await graves.take()))


async def test_copying_again_makes_no_second_copy(q: Desk) -> None:
    graves = await forwarding(q)
    await q.put("a")
    lease = await q.take()
    for _ in range(2):
        await q.exchange(fail(lease), call="x")
        await q.tick()
    assert await graves.counts() == {"waiting": 1}


@pytest.mark.parametrize("way", ["removed", "purged", "out of retention"])
async def test_a_job_that_uses_the_id_of_a_removed_one_gets_a_copy_of_its_own(
    q: Desk, way: str
) -> None:
    graves = await forwarding(q)
    await q.put_one("a", payload=b"[[1],{}]", result_ttl_ms=SECOND)
    await q.settle(fail(await q.take()))
    if way == "removed":
        await q.alter(Remove(job=q.key("a")))
    elif way == "purged":
        await q.store.purge_ended(q.queue, State.FAILED)
    else:
        q.clock.advance(2 * SECOND)
    await q.put_one("a", payload=b"[[2],{}]")
    await q.settle(fail(await q.take()))
    await q.tick()
    copies = await read_all(q.store, graves.queue)
    assert sorted(copy.payload for copy in copies) == [b"[[1],{}]", b"[[2],{}]"]
    assert {copy.origin for copy in copies} == {"work/a"}


async def test_a_parent_that_uses_the_id_of_a_removed_one_gets_a_copy_of_its_own(q: Desk) -> None:
    graves = await forwarding(q)
    for n in range(2):
        await q.put_one("child")
        await q.put_one("parent", payload=b"[[%d],{}]" % n, after=(Edge(q.key("child")),))
        await q.settle(fail(await q.take()))
        assert await q.state("parent") is State.FAILED
        await q.store.alter([Remove(job=q.key(id)) for id in ("child", "parent")])
    await q.tick()
    copies = await read_all(q.store, graves.queue)
    assert sorted(copy.origin or "" for copy in copies) == ["work/child"] * 2 + ["work/parent"] * 2


async def test_copies_from_two_queues_with_one_long_id_are_both_kept(q: Desk) -> None:
    graves, long = await forwarding(q), "x" * 256
    other = q.beside("other")
    await q.store.declare(other.queue, QueueConfig(dead_letters="graves"))
    for desk in (q, other):
        await desk.put(long)
        await desk.settle(fail(await desk.take()))
    await q.tick()
    copies = await read_all(q.store, graves.queue)
    assert sorted(copy.origin or "" for copy in copies) == [f"other/{long}", f"work/{long}"]
    assert all(len(copy.id) == 256 for copy in copies)


async def test_a_job_that_is_rerun_and_fails_again_is_copied_again(q: Desk) -> None:
    graves = await forwarding(q)
    await q.put("a")
    await q.settle(fail(await q.take()))
    await q.alter(Rerun(job=q.key("a")))
    await q.settle(fail(await q.take()))
    await q.tick()
    assert await graves.counts() == {"waiting": 2}


@pytest.mark.parametrize("way", ["stalled", "expired"])
async def test_every_failure_is_copied(q: Desk, way: str) -> None:
    graves = await forwarding(q)
    await q.put_one("a", ttl_ms=SECOND, max_stalls=0)
    if way == "stalled":
        await q.take(lease_ms=SECOND)
    q.clock.advance(2 * SECOND)
    await q.tick()
    await q.tick()
    assert [r.origin for r in await read_all(q.store, graves.queue)] == ["work/a"]


async def test_what_did_not_fail_is_not_copied(q: Desk) -> None:
    graves = await forwarding(q)
    await q.put("done", "again", "gone")
    done, again = await q.claim(2)
    await q.alter(Cancel(job=q.key("gone")))
    await q.settle(complete(done), retry(again))
    await q.tick()
    assert await graves.counts() == {}


async def test_the_declared_queue_can_be_read_back(q: Desk) -> None:
    await forwarding(q)
    assert (await q.store.declare(q.queue, QueueConfig())).dead_letters == "graves"


async def test_two_queues_may_share_their_graves(q: Desk) -> None:
    graves = await forwarding(q)
    beside = q.beside("other")
    await q.store.declare(beside.queue, QueueConfig(dead_letters="graves"))
    for desk in (q, beside):
        await desk.put("a")
        await desk.settle(fail(await desk.take()))
    await q.tick()
    assert sorted(r.origin or "" for r in await read_all(q.store, graves.queue)) == [
        "other/a",
        "work/a",
    ]
