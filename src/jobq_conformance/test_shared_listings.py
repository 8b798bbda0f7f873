"""skip, and find until a cursor: several readers share a long listing."""

from __future__ import annotations

import pytest

from jobq.core.records.commands import Cancel
from jobq.core.records.jobs import Filter, QueueName
from jobq.core.records.states import State
from jobq.errors import InvalidJob
from jobq_conformance.kit import DAY, Desk, complete, read_all, release
from jobq_conformance.roles import needs

pytestmark = [needs("reads", "delays"), pytest.mark.topology]


async def divided(q: Desk, filter: Filter, count: int) -> list[tuple[str | None, str | None]]:
    """The cursors between which each reader lists jobs."""
    cursors: list[str | None] = [None]
    while (cursor := await q.store.skip(filter, cursor=cursors[-1], count=count)) is not None:
        cursors.append(cursor)
    return list(zip(cursors, [*cursors[1:], None], strict=True))


async def between(
    q: Desk, filter: Filter, after: str | None, until: str | None, limit: int = 4
) -> list[str]:
    """The ids from one cursor up to another."""
    seen: list[str] = []
    more = True
    while more:
        page = await q.store.find(filter, cursor=after, until=until, limit=limit)
        seen += [record.id for record in page.records]
        after, more = page.cursor, page.cursor is not None
    return seen


async def of_each_order(q: Desk) -> None:
    """Many jobs in states with different indexes; waiting ones of two priorities, one at the front.

    Several end in the same millisecond."""
    await q.put(*(f"done{n:02}" for n in range(20)))
    for n, lease in enumerate(await q.claim(20)):
        await q.settle(complete(lease))
        q.clock.advance(n % 3)
    await q.put(*(f"plain{n:02}" for n in range(20)))
    await q.settle(release(await q.take()))
    for n in range(15):
        await q.put_one(f"urgent{n:02}", priority=7)
    for n in range(11):
        await q.put_one(f"later{n:02}", delay_ms=DAY + n // 4)


@pytest.mark.parametrize("count", [1, 4, 7, 1000])
async def test_readers_that_share_a_listing_read_every_job_once(q: Desk, count: int) -> None:
    await of_each_order(q)
    for state in (None, State.WAITING, State.COMPLETED, State.DELAYED, State.FAILED):
        filter = Filter(queue=q.queue, state=state)
        wanted = [record.id for record in await read_all(q.store, q.queue, state)]
        parts = [await between(q, filter, *part) for part in await divided(q, filter, count)]
        assert [id for part in parts for id in part] == wanted
        assert state is None or max(map(len, parts)) <= 2 * count


async def test_readers_share_the_waiting_jobs_of_a_keyed_queue(q: Desk) -> None:
    for n in range(6):
        for key in ("a", "ab", "b", "é"):
            await q.put_one(f"{key}{n}", key=key, priority=n % 2)
    filter = Filter(queue=q.queue, state=State.WAITING)
    wanted = [record.id for record in await read_all(q.store, q.queue, State.WAITING)]
    for count in (1, 5, 6, 7):
        parts = [await between(q, filter, *part) for part in await divided(q, filter, count)]
        assert [id for part in parts for id in part] == wanted
        assert len(parts) >= len(wanted) // count


async def test_jobs_that_stay_are_read_once_though_others_come_and_go_meanwhile(q: Desk) -> None:
    await of_each_order(q)
    for state in (State.WAITING, State.COMPLETED, State.DELAYED):
        filter = Filter(queue=q.queue, state=state)
        before = [record.id for record in await read_all(q.store, q.queue, state)]
        parts = await divided(q, filter, 4)
        gone = {(await between(q, filter, *part))[-1] for part in parts[:-1]}  # where readers end
        if state is State.COMPLETED:
            await q.settle(complete(await q.take()))
            gone = set()
        else:
            await q.store.alter([Cancel(job=q.key(id)) for id in sorted(gone)])
            await q.put("new1", "new2")
            await q.put_one("new3", priority=7)
            await q.put_one("new4", delay_ms=2 * DAY)
        seen = [id for part in parts for id in await between(q, filter, *part)]
        assert len(seen) == len(set(seen))
        assert set(before) - gone <= set(seen)


async def test_readers_may_look_for_jobs_of_one_task(q: Desk) -> None:
    for n in range(12):
        await q.put_one(f"j{n:02}", name="mail" if n % 3 else "call")
    filter = Filter(queue=q.queue, state=State.WAITING, name="call")
    parts = await divided(q, Filter(queue=q.queue, state=State.WAITING), 5)
    assert len(parts) >= 3
    seen = [id for part in parts for id in await between(q, filter, *part)]
    assert sorted(seen) == ["j00", "j03", "j06", "j09"]


async def test_a_listing_that_cannot_be_divided_is_refused(q: Desk) -> None:
    await q.put("a", "b")
    with pytest.raises(InvalidJob, match="newest jobs first"):
        await q.store.skip(Filter(queue=q.queue, oldest_first=True))
    for wrong in ("nonsense", "9/", "[]"):
        with pytest.raises(InvalidJob, match="not a cursor of this listing"):
            await q.store.find(Filter(queue=q.queue), until=wrong)
    unknown = Filter(queue=QueueName("acme", "nobody"))
    assert await q.store.skip(unknown) is None
