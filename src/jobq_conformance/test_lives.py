"""Whatever happens to the jobs of an id, every store counts their lives alike.

A new job begins in life 0 if the store has no record of the id, else in the life after that of the
record (`core.rules.ended.next_life`).
"""

from __future__ import annotations

from random import Random

import pytest

from jobq.core.records.commands import Cancel, Remove
from jobq_conformance.examples import number
from jobq_conformance.kit import SECOND, Desk, complete, fresh_queue
from jobq_conformance.lives import MANY, Lives
from jobq_conformance.roles import needs

pytestmark = needs("operators", "upkeep", "reads", "limits", "events", "priorities")

SEEDS = number(40)


async def test_a_purged_id_begins_again_in_life_0(q: Desk) -> None:
    """Also if a cancel has left a place in the queue behind."""
    lives = [(await q.put_one("a")).life]
    await q.alter(Cancel(job=q.key("a")))
    lives.append((await q.put_one("a")).life)
    await q.settle(complete(await q.take()))
    await q.alter(Remove(job=q.key("a")))
    lives.append((await q.put_one("a")).life)
    assert lives == [0, 1, 0]
    assert [e.life for e in await q.events("a") if e.kind == "accepted"] == lives
    assert len(await q.claim(MANY)) == 1


async def test_an_id_that_was_cancelled_and_purged_begins_again_in_life_0(q: Desk) -> None:
    """The place that the cancel has left in the queue is still there."""
    await q.put_one("a")
    await q.alter(Cancel(job=q.key("a")))
    assert await q.alter(Remove(job=q.key("a")))
    assert (await q.put_one("a")).life == 0
    assert [lease.life for lease in await q.claim(MANY)] == [0]


async def test_an_expired_id_begins_again_in_life_0(q: Desk) -> None:
    """Also if the store has not removed the record yet."""
    await q.put_one("a", result_ttl_ms=SECOND)
    await q.alter(Cancel(job=q.key("a")))
    assert (await q.put_one("a", result_ttl_ms=SECOND)).life == 1
    await q.settle(complete(await q.take()))
    q.clock.advance(2 * SECOND)
    assert (await q.put_one("a")).life == 0


@pytest.mark.parametrize("tenth", range(4))
async def test_random_histories_of_one_id(q: Desk, tenth: int) -> None:
    for seed in range(tenth * SEEDS // 4, (tenth + 1) * SEEDS // 4):
        desk = Desk(q.store, fresh_queue(), q.clock, q.audited)
        try:
            await Lives(desk, Random(seed)).play()
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise
