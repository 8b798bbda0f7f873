"""The count of waiting jobs that have stalled. While it is 0, claims look for no last chances."""

from __future__ import annotations

from pathlib import Path

import apsw

from jobq.core.records.commands import Cancel
from jobq.core.records.jobs import QueueName
from jobq.stores import open_store
from jobq.stores.relational import packed
from jobq_conformance.kit import SECOND, Desk, FakeClock, complete, release


def frail(path: Path) -> int:
    """The count, as another process reads it."""
    with apsw.Connection(str(path)) as connection:
        ((blob,),) = connection.execute("SELECT settings FROM queues").fetchall()
    assert isinstance(blob, bytes)
    return packed.unpack_settings(blob).frail


async def test_the_count_follows_the_jobs_and_returns_to_zero(tmp_path: Path) -> None:
    clock, path = FakeClock(), tmp_path / "jobs.db"
    async with open_store(f"sqlite:///{path}", clock=clock) as store:
        q = Desk(store, QueueName("t", "work"), clock)
        await q.put("a", "b", "c", "d")
        await q.claim(3, lease_ms=SECOND)
        clock.advance(2 * SECOND)
        await q.tick()
        assert frail(path) == 3
        await q.alter(Cancel(job=q.key("c")))
        assert frail(path) == 2
        a, b, d = await q.claim(10)
        assert frail(path) == 0
        await q.settle(release(a), complete(b), complete(d))
        assert frail(path) == 1
        await q.settle(complete(await q.take()))
        assert frail(path) == 0
