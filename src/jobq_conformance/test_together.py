"""Two handles that work on one store at the same time, as two processes would."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from jobq.core.records.jobs import AnyOutcome, Lease
from jobq.core.records.states import State
from jobq_conformance.kit import LEASE, SECOND, Desk, complete, ref, release, retry, snooze

pytestmark = pytest.mark.topology


async def test_a_lease_lost_to_another_handle_is_stale(q_twice: tuple[Desk, Desk]) -> None:
    first, second = q_twice
    await first.put("a")
    old = await first.take("w1", lease_ms=SECOND)
    first.clock.advance(2 * SECOND)
    new = await second.take("w2")
    assert new.stalls == 1
    assert [r.token for r in (await first.exchange(complete(old, b"old"), worker="w1")).stale] == [
        old.token
    ]
    assert await first.store.extend([ref(old)], lease_ms=LEASE) == ["lost"]
    await second.settle(complete(new, b"new"), worker="w2")
    assert (await first.get("a")).result == b"new"


async def test_a_job_ended_through_another_handle_cannot_be_settled_here(
    q_twice: tuple[Desk, Desk],
) -> None:
    first, second = q_twice
    await first.put("a")
    old = await first.take("w1", lease_ms=SECOND)
    first.clock.advance(2 * SECOND)
    await second.settle(complete(await second.take("w2"), b"new"), worker="w2")
    assert len((await first.exchange(complete(old, b"old"), worker="w1")).stale) == 1
    assert (await second.get("a")).result == b"new"


async def test_a_lease_may_be_settled_through_another_handle(q_twice: tuple[Desk, Desk]) -> None:
    first, second = q_twice
    await first.put("a", "b")
    a, b = await first.claim(2)
    await second.settle(complete(a, b"1"), release(b))
    assert await first.states("a", "b") == ["completed", "waiting"]
    assert await first.claim_ids() == ["b"]


async def test_a_repaired_and_reclaimed_job_does_not_answer_to_the_first_run(
    q_twice: tuple[Desk, Desk],
) -> None:
    """The same worker gets it again: only the last token counts."""
    first, second = q_twice
    await first.put("a")
    old = await first.take("w1", lease_ms=SECOND)
    first.clock.advance(2 * SECOND)
    await second.tick()
    new = await first.take("w1")
    assert new.token != old.token
    assert len((await first.exchange(complete(old), worker="w1")).stale) == 1
    await first.settle(complete(new), worker="w1")


async def test_both_handles_see_one_order(q_twice: tuple[Desk, Desk]) -> None:
    first, second = q_twice
    for n in range(6):
        await (first, second)[n % 2].put(f"j{n}")
    assert await second.claim_ids(3) == ["j0", "j1", "j2"]
    assert await first.claim_ids(3) == ["j3", "j4", "j5"]


def outcome(lease: Lease, random: Random) -> AnyOutcome:
    """A few runs fail, but none forever."""
    if lease.attempt < 4 and random.random() < 0.3:
        wrong: list[AnyOutcome] = [retry(lease), snooze(lease), release(lease)]
        return random.choice(wrong)
    return complete(lease)


@pytest.mark.parametrize("keyed", [False, True], ids=["plain", "keyed"])
async def test_four_workers_on_two_handles_end_every_job_once(
    q_twice: tuple[Desk, Desk], keyed: bool
) -> None:
    ids = [f"j{n:03}" for n in range(150)]
    await q_twice[0].store.put(
        [q_twice[0].spec(id, key=f"k{n % 7}" if keyed else None) for n, id in enumerate(ids)]
    )
    ended: list[str] = []

    async def work(desk: Desk, name: str, random: Random) -> None:
        outcomes: list[AnyOutcome] = []
        while outcomes or len(ended) < len(ids):
            settled = await desk.exchange(*outcomes, worker=name, then=desk.claiming(5))
            assert settled.stale == ()
            ended.extend(o.id for o in outcomes if o.__class__.__name__ == "Complete")
            outcomes = [outcome(lease, random) for lease in settled.leases]
            await asyncio.sleep(0)

    async with asyncio.timeout(60):
        await asyncio.gather(
            *(
                work(desk, f"w{n}{m}", Random(n * 2 + m))
                for n, desk in enumerate(q_twice)
                for m in range(2)
            )
        )
    assert sorted(ended) == ids
    assert await q_twice[0].counts() == {"completed": 150}
    assert await q_twice[1].state(ids[0]) is State.COMPLETED
