"""A file that is deleted or replaced while processes use it: calls fail, and nothing is
acknowledged.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import stat
from pathlib import Path

import pytest

from jobq import StoreUnavailable
from jobq.core.records.jobs import Claim, JobSpec, QueueName
from jobq.stores import open_store
from jobq.stores.sqlite import files, wal

QUEUE = QueueName("t", "q")


def spec(id: str) -> JobSpec:
    return JobSpec(queue=QUEUE, id=id, name="task", payload=b"[[],{}]")


@pytest.fixture
def checks_always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each write checks, not only one per second: nobody has to wait."""
    monkeypatch.setattr(files, "CHECK_S", 0.0)


@pytest.mark.usefixtures("checks_always")
@pytest.mark.parametrize("lost", ["jobs.db", "jobs.db-wal", "jobs.db-lock"])
async def test_nothing_is_accepted_after_the_file_was_deleted(tmp_path: Path, lost: str) -> None:
    async with open_store(f"sqlite:///{tmp_path}/jobs.db") as store:
        await store.put([spec("a")])
        await store.put([spec("b")])
        os.unlink(tmp_path / lost)
        with pytest.raises(StoreUnavailable, match=f"{lost} was deleted"):
            await store.put([spec("c")])
        with pytest.raises(StoreUnavailable, match="restart this process"):
            await store.count(QUEUE)


@pytest.mark.usefixtures("checks_always")
async def test_nothing_is_accepted_after_the_file_was_replaced(tmp_path: Path) -> None:
    async with open_store(f"sqlite:///{tmp_path}/backup.db") as backup:
        await backup.put([spec("old")])
    async with open_store(f"sqlite:///{tmp_path}/jobs.db") as store:
        await store.put([spec("a")])
        shutil.copy(tmp_path / "backup.db", tmp_path / "restored.db")
        os.replace(tmp_path / "restored.db", tmp_path / "jobs.db")
        with pytest.raises(StoreUnavailable, match=r"jobs\.db was replaced"):
            await store.put([spec("b")])


async def test_a_sleeping_worker_learns_that_its_file_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(files, "CHECK_S", 0.0)
    monkeypatch.setattr(wal, "WATCH_S", 0.05)
    claim = Claim(queues=(QUEUE,), limit=1, lease_ms=60_000)
    with caplog.at_level(logging.ERROR, "jobq"):
        async with open_store(f"sqlite:///{tmp_path}/jobs.db") as store:
            await store.put([spec("a")])
            await store.settle([], worker="w", call="1", then=claim)
            assert (await store.settle([], worker="w", call="2", then=claim)).asleep
            sleeping = asyncio.ensure_future(
                store.sleep([QUEUE], worker="w", slots=1, timeout_ms=60_000)
            )
            os.unlink(tmp_path / "jobs.db")
            assert await asyncio.wait_for(sleeping, 30) is True
            with pytest.raises(StoreUnavailable, match="was deleted"):
                await store.settle([], worker="w", call="3", then=claim)
    assert [record.levelname for record in caplog.records if "was deleted" in record.message] == [
        "ERROR"
    ]


async def test_a_new_file_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    before = os.umask(0o000)
    try:
        async with open_store(f"sqlite:///{tmp_path}/jobs.db") as store:
            await store.put([spec("a")])
            modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()}
    finally:
        os.umask(before)
    assert modes == dict.fromkeys(["jobs.db", "jobs.db-wal", "jobs.db-shm", "jobs.db-lock"], 0o600)


async def test_a_file_shared_with_a_group_stays_shared(tmp_path: Path) -> None:
    (tmp_path / "jobs.db").touch()
    (tmp_path / "jobs.db").chmod(0o660)
    async with open_store(f"sqlite:///{tmp_path}/jobs.db") as store:
        await store.put([spec("a")])
        modes = {stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()}
    assert modes == {0o660}
