"""A tick is bounded: it deletes and reads a limited number of rows, however many there are."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from jobq.core.records.defaults import DAY_MS
from jobq.core.records.jobs import JobSpec, QueueName
from jobq.stores import open_store
from jobq.stores.sqlite import SqliteStore, trimming

QUEUE = QueueName("t", "q")
NOW = 10 * DAY_MS


@pytest.fixture
async def store() -> AsyncIterator[SqliteStore]:
    opened = open_store("memory://upkeep", clock=lambda: NOW)
    assert isinstance(opened, SqliteStore)
    async with opened:
        yield opened


async def ask(store: SqliteStore, sql: str) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = await store._write(lambda tx: tx.execute(sql).fetchall())
    return found


async def fill(store: SqliteStore, sql: str, rows: list[tuple[Any, ...]]) -> None:
    await store._write(lambda tx: tx.change_many(sql, rows))


def spec(id: str) -> JobSpec:
    return JobSpec(queue=QUEUE, id=id, name="task", payload=b"[[],{}]")


SWEPT: dict[str, tuple[str, Callable[[int, bool], tuple[object, ...]]]] = {
    "workers": (
        "INSERT INTO workers VALUES (?, x'00', ?, NULL)",
        lambda n, old: (f"w{n:04}", 0 if old else NOW),
    ),
    "calls": (
        "INSERT INTO calls VALUES (?, 'c', ?, NULL)",
        lambda n, old: (f"w{n:04}", 0 if old else NOW),
    ),
    "listeners": (
        "INSERT INTO listeners VALUES (?, ?, 1, ?)",
        lambda n, old: (f"e:{n // 3:04}", n, NOW - 1 if old else NOW),
    ),
    "sleepers": (
        "INSERT INTO sleepers VALUES (?, ?, 1, 1, 1, ?)",
        lambda n, old: (1 + n // 300, f"w{n:04}", 0 if old else NOW),
    ),
    "minutes": (
        "INSERT INTO minutes VALUES (1, ?, 0, 0, 0, 0, 0, 0, 0, 0, 0)",
        lambda n, old: (n if old else NOW + n,),
    ),
}


@pytest.mark.parametrize("table", SWEPT)
async def test_a_sweep_deletes_the_expired_rows_a_bounded_number_at_a_time(
    store: SqliteStore, table: str
) -> None:
    await store.put([spec("a")])
    insert, row = SWEPT[table]
    await fill(store, insert, [row(n, n % 2 == 0) for n in range(1000)])
    left = [1000]
    for _ in range(12):
        await store.tick(limit=100)
        left.append((await ask(store, f"SELECT count(*) FROM {table}"))[0][0])
    assert left[-1] == 500
    assert all(0 <= before - after <= 100 for before, after in itertools.pairwise(left))


@pytest.mark.parametrize("table", SWEPT)
async def test_a_sweep_finds_rows_that_expire_behind_the_place_it_has_reached(
    store: SqliteStore, table: str
) -> None:
    await store.put([spec("a")])
    insert, row = SWEPT[table]
    await fill(store, insert, [row(n, False) for n in range(1, 250)])
    await store.tick(limit=100)
    await fill(store, insert, [row(0, True)])
    for _ in range(4):
        await store.tick(limit=100)
    assert await ask(store, f"SELECT count(*) FROM {table}") == [(249,)]


async def bulk(store: SqliteStore, calls: int) -> None:
    """Some calls of ten jobs each: an entry of ten events for each call."""
    (written,) = (await ask(store, "SELECT count(*) FROM jobs"))[0]
    for n in range(calls):
        await store.put([spec(f"{written + 10 * n + k}") for k in range(10)])


async def entries(store: SqliteStore) -> int:
    return int((await ask(store, "SELECT count(*) FROM events"))[0][0])


async def test_one_tick_drops_few_events_of_a_log_that_a_bulk_has_filled(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trimming, "LOG_EVENTS", 20)
    monkeypatch.setattr(trimming, "TRIM_EVENTS", 50)
    await bulk(store, 30)
    left = []
    for _ in range(6):
        assert await store.tick(limit=500) < 500  # the ticker rests: nothing waits for the trimming
        left.append(await entries(store))
    assert left == [24, 18, 12, 6, 2, 2]


async def test_trimming_keeps_up_with_writers_that_are_faster_than_its_bound(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trimming, "LOG_EVENTS", 20)
    monkeypatch.setattr(trimming, "TRIM_EVENTS", 50)
    await bulk(store, 60)
    await store.tick()
    left = []
    for _ in range(5):
        await bulk(store, 20)  # 200 events between two ticks
        await store.tick()
        left.append(await entries(store))
    assert left == sorted(left, reverse=True)
    assert left[-1] == 2
