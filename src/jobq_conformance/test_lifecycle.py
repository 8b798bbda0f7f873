"""Opening and closing handles, and several handles on one store."""

from __future__ import annotations

import asyncio
import threading

import pytest

from jobq.core.records.jobs import JobSpec, QueueName
from jobq.core.records.states import State
from jobq.stores.base import Store
from jobq_conformance.kit import SECOND, Desk, FakeClock, complete, fresh_queue, ref
from jobq_conformance.places import Opening
from jobq_conformance.roles import needs

pytestmark = [needs(), pytest.mark.topology]

MANY = 520
"""Queues: more than a tick of jobq's own stores looks at."""


async def test_migrate_is_idempotent_and_safe_in_parallel(
    opening: Opening, clock: FakeClock
) -> None:
    handles = [opening(clock) for _ in range(4)]
    await asyncio.gather(*(h.migrate() for h in handles))
    await asyncio.gather(*(h.migrate() for h in handles))
    desk = Desk(handles[0], fresh_queue(), clock)
    await desk.put("a")
    assert await desk.through(handles[-1]).claim_ids() == ["a"]
    for handle in handles:
        await handle.aclose()


async def test_closing_one_handle_leaves_the_other_at_work(
    opening: Opening, clock: FakeClock
) -> None:
    async with opening(clock) as stays:
        desk = Desk(stays, fresh_queue(), clock)
        async with opening(clock) as goes:
            await desk.through(goes).put("a")
        assert await desk.claim_ids() == ["a"]


@needs("reads")
async def test_what_is_stored_outlives_a_handle(opening: Opening, clock: FakeClock) -> None:
    queue = fresh_queue()
    async with opening(clock) as stays:
        async with opening(clock) as handle:
            await Desk(handle, queue, clock).put("a")
        async with opening(clock) as handle:
            assert await Desk(handle, queue, clock).claim_ids() == ["a"]
        assert await Desk(stays, queue, clock).counts() == {"active": 1}


async def test_closing_twice_is_closing(opening: Opening, clock: FakeClock) -> None:
    handle = opening(clock)
    await handle.migrate()
    await handle.aclose()
    await handle.aclose()


@needs("leases")
async def test_another_handle_works_in_the_event_loop_of_another_thread(
    q: Desk, opening: Opening
) -> None:
    """The keeper's way of renewing leases while the main loop is blocked."""
    await q.put("a")
    lease = await q.take()
    answers: list[str] = []

    async def renew() -> None:
        async with opening(q.clock) as other:
            answers.extend(await other.extend([ref(lease)], lease_ms=60_000))

    thread = threading.Thread(target=lambda: asyncio.run(renew()))
    thread.start()
    thread.join(20)  # this blocks the event loop meanwhile
    assert answers == ["held"]
    q.clock.advance(59_000)
    assert await q.claim(worker="w2") == []
    await q.settle(complete(lease))


async def test_concurrent_calls_on_one_handle_are_each_whole(q: Desk) -> None:
    await asyncio.gather(*(q.put(f"a{n}", f"b{n}") for n in range(30)))
    assert await q.counts() == {"waiting": 60}
    claims = await asyncio.gather(*(q.claim(5, worker=f"w{n}") for n in range(12)))
    ids = [lease.id for leases in claims for lease in leases]
    assert len(ids) == len(set(ids)) == 60
    await asyncio.gather(
        *(q.settle(*map(complete, leases), worker=f"w{n}") for n, leases in enumerate(claims))
    )
    assert await q.counts() == {"completed": 60}


async def test_two_handles_claiming_at_once_share_the_work(q_twice: tuple[Desk, Desk]) -> None:
    first, second = q_twice
    await first.put(*(f"j{n}" for n in range(40)))
    claims = await asyncio.gather(
        *(
            desk.claim(10, worker=f"{side}{n}")
            for side, desk in enumerate((first, second))
            for n in range(2)
        )
    )
    ids = [lease.id for leases in claims for lease in leases]
    assert len(ids) == len(set(ids)) == 40
    assert await first.state("j0") is State.ACTIVE


async def test_a_handle_names_its_place(store: Store) -> None:
    assert "://" in store.url


@needs("reads", "delays")
async def test_upkeep_reaches_all_queues_of_a_store_with_many(
    opening: Opening, clock: FakeClock
) -> None:
    first = fresh_queue()
    queues = [QueueName(first.tenant, f"{first.queue} {n}") for n in range(MANY)]
    async with opening(clock) as store:
        for start in range(0, MANY, 100):
            await store.put(
                [
                    JobSpec(queue=queue, id="a", name="noop", payload=b"[[],{}]", delay_ms=SECOND)
                    for queue in queues[start : start + 100]
                ]
            )
        clock.advance(SECOND)
        for _ in range(100):  # other tests may have left queues in the store
            if await store.tick(limit=500) < 500:
                break
        else:
            raise AssertionError("upkeep does not come to an end")
        counts = await asyncio.gather(*(store.count(queue) for queue in queues))
    assert [count[State.WAITING] for count in counts] == [1] * MANY
