"""A repair of one job of a keyed queue leaves the holds and rates of the queue's keys alone."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from jobq import JobFailed, Queue, Rate, State, Worker


@pytest.mark.parametrize("by", ["hold", "rate"])
async def test_a_repair_keeps_the_holds_and_rates_of_other_keys(tmp_path: Path, by: str) -> None:
    path = tmp_path / "jobs.db"
    queue = Queue("q", f"sqlite:///{path}", mode="keyed")

    @queue.task
    async def work() -> None: ...

    async with queue:
        if by == "hold":
            await queue.hold(3600, key="held")
        else:
            await queue.set_limits(key="held", key_rate=Rate(1, per=3600))
            first = await work.options(key="held").enqueue()
            async with Worker(queue):
                await first.result(timeout=20)
        held = await work.options(key="held").enqueue()
        bad = await work.options(key="bad").enqueue()
    connection = apsw.Connection(str(path))
    connection.execute("UPDATE jobs SET priority = 'x' WHERE id = ?", (bad.id,))
    connection.close()
    async with queue:
        async with Worker(queue):
            with pytest.raises(JobFailed, match="Unreadable"):
                await bad.result(timeout=20)
            last = await work.options(key="other").enqueue()
            await last.result(timeout=20)
        assert await held.state() is State.WAITING
