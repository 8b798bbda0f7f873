"""A file that an older jobq wrote is brought up to date when it is opened, and loses nothing."""

from __future__ import annotations

import hashlib
import sqlite3
import time
from importlib.resources import files
from pathlib import Path

import apsw
import pytest

from jobq import __version__
from jobq.core.records.commands import Rerun
from jobq.core.records.jobs import JobKey, JobSpec
from jobq.core.records.states import State
from jobq.errors import ConfigError, CorruptStore
from jobq.stores import open_store
from tests.stores.written_by_0_1 import (
    KEYED,
    RUNNABLE,
    RUNNABLE_KEYED,
    WORK,
    WRITTEN_MS,
    check_jobs,
    drain,
)

RELEASED = {1: "de6dec750b2bfe08a37832bb5e50932761f26c417fcc9edae24ff4bb62fa7535"}
"""The digests of migrations that a release has shipped. Databases have run them, so they never
change.
"""


@pytest.fixture
def old_file(tmp_path: Path) -> Path:
    """A database as jobq 0.1 left it: jobs in every state, a schedule, a log with a reader."""
    path = tmp_path / "jobs.db"
    with sqlite3.connect(path) as connection:
        connection.executescript(Path(__file__).with_name("written_by_0_1.sql").read_text())
    connection.close()
    return path


def shape(path: Path) -> list[tuple[str, ...]]:
    """Tables with their columns, and indexes, however their statements are laid out."""
    connection = apsw.Connection(str(path))
    names = [
        name
        for (name,) in connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name"
        )
    ]
    columns = [
        (name, *map(str, column[1:6]))
        for name in names
        for column in connection.execute(f"PRAGMA table_info({name})")
    ]
    indexes = connection.execute(
        "SELECT name, tbl_name FROM sqlite_master WHERE type = 'index' ORDER BY name"
    ).fetchall()
    return columns + indexes


async def test_an_old_file_gets_the_schema_of_a_new_one_and_loses_nothing(
    old_file: Path, tmp_path: Path
) -> None:
    new = tmp_path / "new.db"
    async with open_store(f"sqlite:///{new}"):
        pass
    now_ms = WRITTEN_MS + 1
    async with open_store(f"sqlite:///{old_file}", clock=lambda: now_ms) as store:
        assert shape(old_file) == shape(new)
        await check_jobs(store)
        position = (await store.readers(WORK))["relay"]
        events = (await store.read_events(WORK, after=position)).events
        assert [str(event.kind) for event in events[:4]] == ["started"] * 4
        now_ms += 7_200_000  # delays and leases are over
        assert await store.alter([Rerun(job=JobKey(WORK, "failed"))])
        assert await drain(store, WORK, KEYED) == sorted(RUNNABLE + RUNNABLE_KEYED)
        assert (await store.count(WORK))[State.FAILED] == 1  # `late`: its ttl passed


@pytest.mark.parametrize("number", RELEASED)
def test_a_released_migration_never_changes(number: int) -> None:
    data = files("jobq.stores.sqlite").joinpath("migrations", f"{number:04}.sql").read_bytes()
    assert hashlib.sha256(data).hexdigest() == RELEASED[number], (
        "put the change into the newest migration instead"
    )


def tell(path: Path, *statements: str) -> None:
    """What another version of jobq may have written to a file."""
    connection = apsw.Connection(str(path))
    for statement in statements:
        connection.execute(statement)
    connection.close()


def newer(schema: int, oldest: int) -> str:
    values = f"('schema', '{schema}'), ('oldest', '{oldest}'), ('release', '9.1.0')"
    return f"INSERT OR REPLACE INTO meta (name, value) VALUES {values}"


async def test_a_file_says_which_layout_it_has(old_file: Path) -> None:
    async with open_store(f"sqlite:///{old_file}"):
        pass
    connection = apsw.Connection(str(old_file))
    facts = dict(connection.execute("SELECT name, value FROM meta"))
    assert (facts["schema"], facts["oldest"], facts["release"]) == ("2", "2", __version__)


async def test_an_old_file_is_not_migrated_while_its_workers_run(old_file: Path) -> None:
    ahead = int(time.time() * 1000) + 60_000
    tell(old_file, f"INSERT INTO workers VALUES ('left', x'', {ahead}, NULL)")
    before = shape(old_file)
    with pytest.raises(ConfigError, match=r"1 of its workers are running \(left\): stop all"):
        async with open_store(f"sqlite:///{old_file}"):
            pass
    assert shape(old_file) == before


async def test_a_file_of_a_newer_layout_is_refused_with_both_versions(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    async with open_store(f"sqlite:///{path}"):
        pass
    tell(path, newer(9, 8))
    words = rf"jobs.db has layout 9, from jobq 9.1.0, and this is jobq {__version__}.* up to 2"
    with pytest.raises(ConfigError, match=words):
        async with open_store(f"sqlite:///{path}"):
            pass


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE meta SET value = 'abc' WHERE name = 'oldest'",
        "UPDATE meta SET value = '' WHERE name = 'schema'",
        "UPDATE meta SET value = x'ff' WHERE name = 'schema'",
        "UPDATE meta SET value = '-1' WHERE name = 'schema'",
        "DELETE FROM meta WHERE name = 'schema'",
        "DELETE FROM meta WHERE name = 'log'",
    ],
)
async def test_a_file_that_does_not_say_which_layout_it_has_is_refused(
    tmp_path: Path, damage: str
) -> None:
    path = tmp_path / "jobs.db"
    async with open_store(f"sqlite:///{path}"):
        pass
    tell(path, damage)
    with pytest.raises(CorruptStore, match=r"jobs\.db does not say which"):
        async with open_store(f"sqlite:///{path}"):
            pass


async def test_a_file_of_a_newer_layout_that_only_adds_is_used(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    async with open_store(f"sqlite:///{path}"):
        pass
    tell(path, newer(9, 2))
    async with open_store(f"sqlite:///{path}") as store:
        await store.put([job("a")])
    facts = dict(apsw.Connection(str(path)).execute("SELECT name, value FROM meta"))
    assert (facts["schema"], facts["release"]) == ("9", "9.1.0")


async def test_an_open_handle_stops_writing_when_a_newer_jobq_migrates_the_file(
    tmp_path: Path,
) -> None:
    path = tmp_path / "jobs.db"
    async with open_store(f"sqlite:///{path}") as store:
        await store.put([job("a")])
        tell(path, newer(9, 9))
        with pytest.raises(ConfigError, match=r"has layout 9, from jobq 9\.1\.0"):
            await store.put([job("b")])
        assert (await store.count(WORK))[State.WAITING] == 1


def job(id: str) -> JobSpec:
    return JobSpec(queue=WORK, id=id, name="charge", payload=b"[[],{}]")
