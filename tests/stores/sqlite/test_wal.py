"""The write-ahead log of a process that was killed is damaged: SQLite takes that for its end."""

from __future__ import annotations

import logging
import shutil
import sqlite3
from pathlib import Path

import apsw
import pytest

from jobq.core.records.jobs import JobSpec, QueueName
from jobq.stores import open_store
from jobq.stores.sqlite import wal

QUEUE = QueueName("t", "q")
CALLS = 10

pytestmark = pytest.mark.skipif(
    not hasattr(apsw, "SQLITE_CHECKPOINT_NOOP"), reason="needs SQLite 3.51"
)


@pytest.fixture
async def killed(tmp_path: Path) -> Path:
    """The files of a process that was killed after CALLS calls."""
    live, copy = tmp_path / "live", tmp_path / "copy"
    live.mkdir()
    copy.mkdir()
    async with open_store(f"sqlite:///{live}/jobs.db") as store:
        for call in range(CALLS):
            spec = JobSpec(queue=QUEUE, id=f"j{call}", name="t", payload=b"[[],{}]")
            await store.put([spec])
        for name in ("jobs.db", "jobs.db-wal"):
            shutil.copy(live / name, copy)
    return copy / "jobs.db"


def damage(log: Path, place: float) -> None:
    """Flip a bit at this share of the file."""
    content = bytearray(log.read_bytes())
    content[int(place * len(content))] ^= 4
    log.write_bytes(content)


async def jobs(file: Path) -> int:
    async with open_store(f"sqlite:///{file}") as store:
        return sum((await store.count(QUEUE)).values())


@pytest.mark.parametrize("place", [0.0, 0.0001, 0.3, 0.7], ids=["magic", "salt", "early", "late"])
async def test_commits_that_are_lost_behind_a_flipped_bit_are_reported(
    killed: Path, caplog: pytest.LogCaptureFixture, place: float
) -> None:
    damage(Path(f"{killed}-wal"), place)
    with caplog.at_level(logging.ERROR, "jobq"):
        found = await jobs(killed)
    assert found < CALLS
    (said,) = caplog.messages
    assert "jobs.db-wal is damaged behind frame" in said
    assert "check the disk" in said


@pytest.mark.parametrize("how", ["whole", "last commit", "cut"])
async def test_a_log_that_a_kill_may_leave_is_not_damaged(
    killed: Path, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    log = Path(f"{killed}-wal")
    if how == "last commit":
        damage(log, 0.9999)
    elif how == "cut":
        log.write_bytes(log.read_bytes()[:-100])
    with caplog.at_level(logging.ERROR, "jobq"):
        assert await jobs(killed) >= CALLS - 1
    assert caplog.messages == []


async def test_a_log_that_begins_again_is_not_damaged(tmp_path: Path) -> None:
    file = f"{tmp_path}/any.db"
    connection = apsw.Connection(file)
    connection.execute("PRAGMA journal_mode = WAL").fetchall()
    connection.execute("CREATE TABLE t (x)")
    for n in range(20):
        connection.execute("INSERT INTO t VALUES (?)", (n,))
    assert wal.lost_commits(connection, file) is None
    connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)
    assert wal.lost_commits(connection, file) is None
    connection.execute("INSERT INTO t VALUES (99)")  # the other frames are of the log before
    assert wal.lost_commits(connection, file) is None
    with sqlite3.connect(f"{tmp_path}/other.db") as other:
        other.execute("CREATE TABLE t (x)")
    plain = apsw.Connection(f"{tmp_path}/other.db")
    assert wal.lost_commits(plain, f"{tmp_path}/other.db") is None
