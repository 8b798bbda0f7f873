"""When the write-ahead log of a SQLite file reaches the disk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from jobq.errors import ConfigError
from jobq.stores import open_store
from jobq.stores.sqlite import wal
from jobq.stores.sqlite.database import Database
from jobq_conformance.kit import Desk, FakeClock, fresh_queue
from tests.waiting import until


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The files that were synced by the thread, which still syncs them."""
    files: list[str] = []
    sync = os.fsync

    def recorded(file: int) -> None:
        sync(file)
        name = os.readlink(f"/proc/self/fd/{file}")
        if name.startswith(str(tmp_path)):  # other stores of this process are none of its business
            files.append(name)

    monkeypatch.setattr(os, "fsync", recorded)
    monkeypatch.setattr(wal, "WATCH_S", 0.05)
    monkeypatch.setattr(wal, "SYNC_S", 0.05)
    return files


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """One entry for each time that the thread has looked whether there is anything to do."""
    seen: list[None] = []
    monkeypatch.setattr(Database, "_watch", lambda _: seen.append(None))
    return seen


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="reads /proc")
async def test_what_is_committed_is_synced_soon_and_once(
    synced: list[str], looks: list[None], tmp_path: Path
) -> None:
    clock = FakeClock()
    async with open_store(f"sqlite:///{tmp_path}/jobs.db", clock=clock) as store:
        desk = Desk(store, fresh_queue(), clock)
        await desk.put("a")
        await until(lambda: synced, "the first sync")
        before, idle = len(synced), len(looks)
        await until(lambda: len(looks) >= idle + 3, "three looks of an idle thread")
        assert len(synced) == before, "nothing was committed since"
        await desk.put("b")
        await until(lambda: len(synced) > before, "the next sync")
    assert set(synced) == {f"{tmp_path}/jobs.db-wal"}


@pytest.mark.parametrize("url", ["memory://test-syncs", "sqlite:///{}/jobs.db?synchronous=full"])
async def test_the_thread_syncs_nothing_that_needs_no_sync(
    synced: list[str], looks: list[None], tmp_path: Path, url: str
) -> None:
    clock = FakeClock()
    async with open_store(url.format(tmp_path), clock=clock) as store:
        await Desk(store, fresh_queue(), clock).put("a")
        await until(lambda: len(looks) >= 3, "three looks of the thread")
    assert synced == []


async def test_a_handle_that_needs_every_commit_synced_gets_that_or_an_error(
    tmp_path: Path,
) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    async with open_store(url):
        with pytest.raises(ConfigError, match=r"opened .* without synchronous=full"):
            await open_store(f"{url}?synchronous=full").migrate()
    async with open_store(f"{url}?synchronous=full"), open_store(url) as store:
        assert store._opened().database.full  # type: ignore[attr-defined]
