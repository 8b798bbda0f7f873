"""Opening files: the right ones, the wrong ones, and what survives."""

from __future__ import annotations

import sqlite3
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from jobq import ConfigError
from jobq.core.records.jobs import Claim, Edge, JobKey, JobSpec, QueueName
from jobq.core.records.states import State
from jobq.errors import InvalidJob, StoreUnavailable
from jobq.stores import open_store
from jobq.stores.sqlite import SqliteStore
from tests.stores.postgres.servers import small_disk

QUEUE = QueueName("t", "q")


def spec(id: str) -> JobSpec:
    return JobSpec(queue=QUEUE, id=id, name="task", payload=b"[[],{}]")


async def test_a_file_keeps_jobs_when_it_is_closed(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    async with open_store(url) as store:
        await store.put([spec("a")])
    async with open_store(url) as store:
        assert (await store.get([JobKey(QUEUE, "a")]))[0] is not None


async def test_memory_is_gone_with_its_last_handle() -> None:
    async with open_store("memory://one") as first:
        async with open_store("memory://one") as second:
            await first.put([spec("a")])
            assert (await second.get([JobKey(QUEUE, "a")]))[0] is not None
        assert (await first.get([JobKey(QUEUE, "a")]))[0] is not None
    async with open_store("memory://one") as later:
        assert await later.get([JobKey(QUEUE, "a")]) == [None]


async def test_memory_stores_of_different_names_share_nothing() -> None:
    async with open_store("memory://one") as one, open_store("memory://two") as two:
        await one.put([spec("a")])
        assert await two.get([JobKey(QUEUE, "a")]) == [None]


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("sqlite://jobs.db", "names no file"),
        ("sqlite:///", "names no file"),
        ("sqlite:////no/such/folder/jobs.db", "/no/such/folder"),
        ("sqlite:///jobs.db?synchronous=sometimes", "sometimes"),
        ("sqlite:///jobs.db?sync=full", "sync"),
        ("mysql://localhost", "mysql://localhost"),
        ("jobs.db", "sqlite:///"),
    ],
)
def test_a_url_that_cannot_work_is_refused_with_a_hint(url: str, says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        open_store(url)
    assert says in str(refused.value)


async def test_a_file_of_another_program_is_refused_and_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE customers (name TEXT)")
    connection.close()
    with pytest.raises(ConfigError, match="another program"):
        await open_store(f"sqlite:///{path}").migrate()


async def test_a_file_that_is_not_a_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a database, but long enough to look like one to somebody in a hurry " * 50)
    with pytest.raises(ConfigError, match=r"notes\.txt"):
        await open_store(f"sqlite:///{path}").migrate()


async def test_a_process_sees_at_once_what_another_wrote_to_a_queue(tmp_path: Path) -> None:
    """Two databases on one file, as two processes have. Each keeps the queue's row only while the
    other does not write.
    """
    stores = [
        SqliteStore("", f"{n}", f"{tmp_path}/jobs.db", full=False, clock=None) for n in range(2)
    ]
    async with stores[0], stores[1]:
        for n in range(12):
            await stores[n % 3 % 2].put([spec(f"{n}")])
        await stores[0].put([spec("a")])
        await stores[1].pause(QUEUE)
        claim = Claim(queues=(QUEUE,), limit=5, lease_ms=60_000)
        assert (await stores[0].settle([], worker="w", call="1", then=claim)).leases == ()
        await stores[1].resume(QUEUE)
        leases = (await stores[0].settle([], worker="w", call="2", then=claim)).leases
        assert [lease.id for lease in leases] == ["0", "1", "2", "3", "4"]
        counts = await stores[1].count(QUEUE)
        assert (counts[State.WAITING], counts[State.ACTIVE]) == (8, 5)


async def test_a_failed_call_changes_nothing_in_its_queue(tmp_path: Path) -> None:
    async with open_store(f"sqlite:///{tmp_path}/jobs.db") as store:
        await store.put([spec("a")])
        with pytest.raises(ConfigError):
            await store.put([spec("b"), msgspec.structs.replace(spec("c"), key="k")])
        with pytest.raises(InvalidJob):
            await store.put(
                [
                    spec("b"),
                    msgspec.structs.replace(spec("c"), after=(Edge(job=JobKey(QUEUE, "none")),)),
                ]
            )
        await store.put([spec("d")])
        assert (await store.count(QUEUE))[State.WAITING] == 2
        page = await store.read_events(QUEUE, after="0")
        assert [event.job for event in page.events] == ["a", "d"]


@pytest.mark.parametrize(
    ("option", "level"), [("", 1), ("?synchronous=normal", 1), ("?synchronous=full", 2)]
)
async def test_synchronous_is_what_the_url_says(tmp_path: Path, option: str, level: int) -> None:
    async with open_store(f"sqlite:///{tmp_path}/jobs.db{option}") as store:
        database = store._opened().database  # type: ignore[attr-defined]
        level_now = await database.writer.submit(
            False, None, lambda tx: tx.execute("PRAGMA synchronous").fetchone()[0], ()
        )
        assert level_now == level


async def test_a_closed_store_says_so() -> None:
    store = open_store("memory://closed")
    async with store:
        pass
    with pytest.raises(RuntimeError, match="not open"):
        await store.put([spec("a")])


async def test_a_full_disk_at_the_opening_is_an_unavailable_store() -> None:
    with small_disk(1) as disk:
        filler = disk / "filler"
        with suppress(OSError), filler.open("wb", buffering=0) as file:
            while file.write(b"x" * 4096):
                pass
        with pytest.raises(StoreUnavailable, match="cannot open"):
            async with open_store(f"sqlite:///{disk}/jobs.db"):
                pass
        filler.unlink()
        async with open_store(f"sqlite:///{disk}/jobs.db") as store:
            await store.put([spec("a")])
