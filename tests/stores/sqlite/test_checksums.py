"""Checksums of pages: a flipped bit is an error and never a wrong job."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path

import pytest

from jobq import ConfigError
from jobq.core.records.jobs import Filter, JobKey, JobSpec, QueueName
from jobq.errors import StoreUnavailable
from jobq.stores import open_store
from jobq.stores.sqlite import checksums

QUEUE = QueueName("t", "q")


@pytest.fixture(autouse=True)
def _has_extension() -> None:
    try:
        checksums.load()
    except ConfigError as missing:
        pytest.skip(str(missing))


def specs(n: int) -> list[JobSpec]:
    rng = random.Random(n)
    return [
        JobSpec(
            queue=QUEUE,
            id=f"j{i}",
            name="t",
            payload=b'[["%s"],{}]' % rng.randbytes(60).hex().encode(),
        )
        for i in range(n)
    ]


async def jobs(url: str) -> dict[str, bytes]:
    async with open_store(url) as store:
        page = await store.find(Filter(queue=QUEUE), limit=1000)
        return {record.id: record.payload for record in page.records}


async def test_every_flipped_bit_of_a_page_is_found(tmp_path: Path) -> None:
    file = tmp_path / "jobs.db"
    url = f"sqlite:///{file}?checksums=yes"
    async with open_store(url) as store:
        await store.put(specs(200))
        before = await jobs(url)
    whole = file.read_bytes()
    rng = random.Random(1)
    found = 0
    for n in range(40):
        damaged = bytearray(whole)
        damaged[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
        copy = tmp_path / f"{n}.db"
        copy.write_bytes(damaged)
        try:
            assert await jobs(f"sqlite:///{copy}") == before, "a wrong job was believed"
        except (StoreUnavailable, ConfigError):  # a ConfigError: the header is not that of SQLite
            found += 1
    assert found > 20, "most pages have jobs"


async def test_a_damaged_page_is_named_in_the_error(tmp_path: Path) -> None:
    file = tmp_path / "jobs.db"
    async with open_store(f"sqlite:///{file}?checksums=yes") as store:
        await store.put(specs(200))
    whole = bytearray(file.read_bytes())
    place = whole.index(specs(200)[150].payload)
    whole[place + 20] ^= 1
    file.write_bytes(whole)
    async with open_store(f"sqlite:///{file}") as store:
        with pytest.raises(StoreUnavailable, match=r"a page has a wrong checksum.*backup"):
            await store.find(Filter(queue=QUEUE), limit=1000)


async def test_a_file_keeps_its_checksums_whatever_the_url_says(tmp_path: Path) -> None:
    file = tmp_path / "jobs.db"
    async with open_store(f"sqlite:///{file}?checksums=yes") as store:
        await store.put(specs(3))
    async with open_store(f"sqlite:///{file}") as store:
        await store.put(specs(300))
    assert len(await jobs(f"sqlite:///{file}?checksums=yes")) == 300
    assert checksums.used(str(file)) is True
    with sqlite3.connect(file) as other:  # any program can read the file
        assert other.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


async def test_a_file_without_checksums_cannot_get_them(tmp_path: Path) -> None:
    file = tmp_path / "jobs.db"
    async with open_store(f"sqlite:///{file}") as store:
        await store.put(specs(3))
    with pytest.raises(ConfigError, match=r"created without checksums.*jq-ctl store copy"):
        async with open_store(f"sqlite:///{file}?checksums=yes"):
            pass
    assert len(await jobs(f"sqlite:///{file}")) == 3


async def test_a_file_that_this_process_has_open_cannot_get_them_either(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    async with open_store(url) as store:
        with pytest.raises(ConfigError, match="created without checksums"):
            await open_store(f"{url}?checksums=yes").migrate()
        assert len(await store.put(specs(3))) == 3


async def test_a_bit_that_is_flipped_while_the_file_is_open_is_found_by_the_next_read(
    tmp_path: Path,
) -> None:
    file = tmp_path / "jobs.db"
    url = f"sqlite:///{file}?checksums=yes"
    async with open_store(url) as store:
        await store.put(specs(2000))
    async with open_store(url) as store:
        assert await store.get([JobKey(QUEUE, "j3")]) != [None]
        place = file.read_bytes().index(specs(2000)[1500].payload)
        with file.open("r+b") as damaged:
            damaged.seek(place + 20)
            (byte,) = damaged.read(1)
            damaged.seek(place + 20)
            damaged.write(bytes([byte ^ 1]))
        with pytest.raises(StoreUnavailable, match="a page has a wrong checksum"):
            await store.get([JobKey(QUEUE, "j1500")])
        assert await store.get([JobKey(QUEUE, "j3")]) != [None]


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ("checksums=maybe", "checksums='maybe' is neither no nor yes"),
        ("checksums=yes&checksums=no", "the option 'checksums' twice"),
        ("checksum=yes", "unknown option 'checksum'; there are synchronous and checksums"),
    ],
)
async def test_a_wrong_option_is_refused(tmp_path: Path, query: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        open_store(f"sqlite:///{tmp_path}/jobs.db?{query}")
