"""Several processes use a file while the clock of their machine is set back by a few seconds."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from jobq.stores import open_store
from jobq_conformance.audit import audit
from jobq_conformance.kit import SECOND, Desk, FakeClock, complete, fresh_queue

Desks = tuple[Desk, Desk]


@pytest.fixture
async def desks(tmp_path: Path) -> AsyncIterator[Desks]:
    """One file through two paths. Nothing is shared between them, as between two processes."""
    (tmp_path / "one").mkdir()
    (tmp_path / "other").symlink_to(tmp_path / "one")
    queue, clock = fresh_queue(), FakeClock()
    async with AsyncExitStack() as stack:
        one, other = [
            Desk(
                await stack.enter_async_context(
                    open_store(f"sqlite:///{tmp_path}/{name}/jobs.db", clock=clock)
                ),
                queue,
                clock,
            )
            for name in ("one", "other")
        ]
        yield one, other
        await audit(one.store, queue)


async def test_a_job_does_not_start_before_another_process_has_put_it(desks: Desks) -> None:
    idle, busy = desks
    await idle.run("before")
    idle.clock.advance(5 * SECOND)
    await busy.put("a")
    idle.clock.advance(-3 * SECOND)
    lease = await idle.take()
    assert lease.started_ms == lease.created_ms
    await busy.settle(complete(lease))


async def test_time_continues_when_the_file_is_opened_again(tmp_path: Path) -> None:
    url, queue, clock = f"sqlite:///{tmp_path}/jobs.db", fresh_queue(), FakeClock()
    async with open_store(url, clock=clock) as store:
        await Desk(store, queue, clock).run("before")
        clock.advance(5 * SECOND)
        await Desk(store, queue, clock).put("a")
    clock.advance(-3 * SECOND)
    async with open_store(url, clock=clock) as store:
        lease = await Desk(store, queue, clock).take()
    assert lease.started_ms == lease.created_ms


@pytest.mark.parametrize("content", [b"", b"\xff" * 28, b"x" * 100])
async def test_a_lock_file_with_something_else_is_ignored(tmp_path: Path, content: bytes) -> None:
    url, queue, clock = f"sqlite:///{tmp_path}/jobs.db", fresh_queue(), FakeClock()
    async with open_store(url, clock=clock) as store:
        await Desk(store, queue, clock).put("a")
    (tmp_path / "jobs.db-lock").write_bytes(content)
    async with open_store(url, clock=clock) as store:
        assert (await Desk(store, queue, clock).take()).started_ms == clock.now_ms


async def test_a_new_file_does_not_continue_from_the_time_of_a_deleted_one(tmp_path: Path) -> None:
    url, queue, clock = f"sqlite:///{tmp_path}/jobs.db", fresh_queue(), FakeClock()
    async with open_store(url) as store:
        await Desk(store, queue, clock).put("a")
    for file in tmp_path.glob("jobs.db*"):
        if not file.name.endswith("-lock"):
            file.unlink()
    async with open_store(url, clock=clock) as store:
        await Desk(store, queue, clock).put("a")
        assert (await Desk(store, queue, clock).get("a")).created_ms == clock.now_ms
