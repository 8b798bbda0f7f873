"""Numbers of events: from 1 without gaps, whichever call wrote them.

The audit after every test checks them too.
"""

from __future__ import annotations

from itertools import groupby

from jobq.core.records.commands import Cancel, Remove, Rerun, SendSignal
from jobq.core.records.jobs import Note, UniqueSpec
from jobq_conformance.kit import (
    SECOND,
    Desk,
    block,
    complete,
    fail,
    hold,
    read_log,
    ref,
    release,
    retry,
    snooze,
)
from jobq_conformance.roles import needs

pytestmark = needs("events")


async def numbers(q: Desk) -> list[int]:
    """The numbers in the log, in the order they are read."""
    return [event.number for event in await q.events()]


async def test_events_are_numbered_from_1(q: Desk) -> None:
    await q.put("a", "b", "c")
    await q.settle(*(complete(lease) for lease in await q.claim(3)))
    assert await numbers(q) == list(range(1, 10))
    assert {event.shard for event in await q.events()} == {0}


async def test_every_kind_of_call_continues_the_numbers(q: Desk) -> None:
    await q.put("plain", "uniform")
    await q.put_one("delayed", delay_ms=SECOND)
    await q.put_one("locked", unique=UniqueSpec(lock="one"))
    await q.put("child")
    await q.put_one("parent", after=(q.edge("child"),))
    q.clock.advance(SECOND)
    leases = {lease.id: lease for lease in await q.claim(10)}
    await q.settle(complete(leases["plain"]), retry(leases["uniform"]), snooze(leases["delayed"]))
    await q.settle(release(leases["locked"]), fail(leases["child"]))
    await q.settle(*(hold(lease, 10) for lease in await q.claim(1)))
    q.clock.advance(SECOND)
    waits = await q.take("w2")
    await q.settle(block(waits, signal="go"), worker="w2")
    await q.alter(SendSignal(job=q.key(waits.id), name="go"))
    await q.take("w3", lease_ms=SECOND)
    q.clock.advance(2 * SECOND)
    await q.tick()
    await q.alter(Rerun(job=q.key("child")))
    await q.store.pause(q.queue)
    await q.store.resume(q.queue)
    await q.alter(Remove(job=q.key("plain")))
    await q.store.purge_pending(q.queue, delayed=True)
    found = await numbers(q)
    assert found == list(range(1, len(found) + 1))
    assert len(found) > 30


async def test_events_of_two_workers_in_one_call_are_numbered_in_order(q: Desk) -> None:
    await q.put("a", "b")
    await q.take("w1", lease_ms=SECOND)
    q.clock.advance(2 * SECOND)
    await q.claim(2, worker="w2")  # brings back the job of w1, and takes both
    assert [(e.number, str(e.kind), e.worker) for e in (await q.events())[3:]] == [
        (4, "stalled", "w1"),
        (5, "started", "w2"),
        (6, "started", "w2"),
    ]


async def test_what_changes_nothing_uses_no_number(q: Desk) -> None:
    await q.put("a")
    await q.put("a")
    await q.store.alter([Rerun(job=q.key("a")), Cancel(job=q.key("nobody"))])
    await q.store.resume(q.queue)
    assert await q.store.purge_pending(q.beside("other").queue) == 0
    await q.put("b")
    assert await numbers(q) == [1, 2]


async def test_two_handles_share_the_numbers(q_twice: tuple[Desk, Desk]) -> None:
    first, second = q_twice
    for n in range(5):
        await first.put(f"a{n}")
        await second.put(f"b{n}", f"c{n}")
        await first.settle(*(complete(lease) for lease in await first.claim(2)))
    found = await numbers(second)
    assert found == list(range(1, len(found) + 1))


async def test_each_queue_has_numbers_of_its_own(q: Desk) -> None:
    beside = q.beside("other")
    await q.store.put([q.spec("a"), beside.spec("b"), q.spec("c")])
    assert await numbers(q) == [1, 2]
    assert await numbers(beside) == [1]


async def test_numbers_go_on_after_obliterate(q: Desk) -> None:
    await q.put("a", "b")
    await q.settle(*(complete(lease) for lease in await q.claim(2)))
    while not await q.store.obliterate(q.queue):
        pass
    before = await numbers(q)
    await q.put("a")
    assert before == list(range(1, len(before) + 1))
    assert await numbers(q) == [*before, len(before) + 1]


async def test_numbers_are_the_same_wherever_reading_begins(q: Desk) -> None:
    for n in range(4):
        await q.put(f"a{n}", f"b{n}")
    whole = await q.events()
    for position, events in groupby(whole, key=lambda event: event.position):
        last = list(events)[-1].number
        assert [e.number for e in await read_log(q.store, q.queue, after=position)] == list(
            range(last + 1, 9)
        )


async def test_a_command_that_fails_whole_uses_no_number(q: Desk) -> None:
    await q.put("a")
    await q.take()
    assert not await q.alter(Remove(job=q.key("a")))
    await q.put("b")
    assert await numbers(q) == [1, 2, 3]


async def test_progress_and_log_lines_are_no_events(q: Desk) -> None:
    await q.put("a")
    lease = await q.take()
    await q.store.note([Note(lease=ref(lease), progress=b"50", lines=("half done",))])
    assert (await q.get("a")).progress == b"50"
    assert await numbers(q) == [1, 2]
