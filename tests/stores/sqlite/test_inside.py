"""Rows inside the database: nothing is left behind, and nothing grows without bound."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from typing import Any

import pytest

from jobq.core.records.commands import Remove, SendSignal
from jobq.core.records.jobs import (
    Claim,
    Complete,
    JobKey,
    JobSpec,
    Lease,
    LeaseRef,
    Note,
    QueueName,
)
from jobq.core.records.queues import Limits, QueueConfig, RetentionData, Window
from jobq.stores import open_store
from jobq.stores.sqlite import SqliteStore, trimming

QUEUE = QueueName("t", "q")
WORK: dict[str, Any] = {"queue": QUEUE, "name": "task", "payload": b"[[],{}]"}


@pytest.fixture
async def store() -> AsyncIterator[SqliteStore]:
    opened = open_store("memory://inside")
    assert isinstance(opened, SqliteStore)
    async with opened:
        yield opened


async def ask(store: SqliteStore, sql: str) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = await store._write(lambda tx: tx.execute(sql).fetchall())
    return found


async def claim(store: SqliteStore, n: int, call: str) -> tuple[Lease, ...]:
    return (
        await store.settle(
            [], worker="w", call=call, then=Claim(queues=(QUEUE,), limit=n, lease_ms=60_000)
        )
    ).leases


async def run_all(store: SqliteStore, n: int, *, of: str = "run") -> None:
    for round in range(1_000):
        leases = await claim(store, n, f"{of}{round}")
        if not leases:
            return
        done = [Complete(queue=lease.queue, id=lease.id, token=lease.token) for lease in leases]
        await store.settle(done, worker="w", call=f"{of}{round}done")


async def test_a_key_with_nothing_waiting_or_active_leaves_nothing_behind(
    store: SqliteStore,
) -> None:
    await store.put([JobSpec(id=f"{n}", key=f"k{n % 7}", **WORK) for n in range(50)])
    assert len(await ask(store, "SELECT * FROM keys")) == 7
    await run_all(store, 10)
    assert await ask(store, "SELECT * FROM keys") == []


async def test_thousands_of_keys_at_their_rate_do_not_keep_a_free_one_from_starting(
    store: SqliteStore,
) -> None:
    limits = Limits(key_limit=10, key_rate=Window(limit=1, per_ms=86_400_000))
    await store.declare(QUEUE, QueueConfig(mode="keyed", limits=limits, limits_version=1))
    await store.put(
        [JobSpec(id=f"{key}/{n}", key=f"{key}", **WORK) for n in range(2) for key in range(2000)]
    )
    assert len(await claim(store, 2000, "all")) == 2000
    await store.put([JobSpec(id="free", key="free", **WORK)])
    assert [lease.id for lease in await claim(store, 1, "one")] == ["free"]


async def test_the_log_drops_old_entries_without_a_registered_reader(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trimming, "LOG_EVENTS", 10)
    for n in range(30):
        await store.put([JobSpec(id=f"{n}", **WORK)])
    await store.tick()
    gap, *kept = (await store.read_events(QUEUE, after="0")).events
    assert (gap.kind, gap.reason) == ("gap", "20 entries dropped")
    assert [event.job for event in kept] == [f"{n}" for n in range(20, 30)]
    assert all(
        event.kind != "gap" for event in (await store.read_events(QUEUE, after=gap.position)).events
    )


async def test_the_log_keeps_entries_that_a_registered_reader_has_not_read(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trimming, "LOG_EVENTS", 10)
    await store.ack_events(QUEUE, "relay", "0")
    for n in range(30):
        await store.put([JobSpec(id=f"{n}", **WORK)])
    await store.tick()
    page = await store.read_events(QUEUE, after="0")
    assert len(page.events) == 30
    await store.ack_events(QUEUE, "relay", page.position)
    await store.tick()
    assert (
        len((await store.read_events(QUEUE, after="0")).events) == 1 + 10
    )  # a gap, and what is kept


async def test_past_the_hard_cap_a_gap_replaces_entries_that_were_dropped_unread(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trimming, "LOG_EVENTS", 5)
    monkeypatch.setattr(trimming, "LOG_CAP", 20)
    await store.ack_events(QUEUE, "relay", "0")
    for n in range(30):
        await store.put([JobSpec(id=f"{n}", **WORK)])
    await store.tick()
    events = (await store.read_events(QUEUE, after="0")).events
    gaps = [event for event in events if event.kind == "gap"]
    assert [event.job for event in events if event.kind != "gap"] == [f"{n}" for n in range(10, 30)]
    assert [gap.reason for gap in gaps] == ["10 entries dropped"]


async def test_a_busy_queue_does_not_keep_a_tick_from_the_others() -> None:
    now = itertools.count(1)
    other = QueueName("t", "other")
    async with open_store("memory://busy", clock=lambda: next(now)) as store:
        assert isinstance(store, SqliteStore)
        await store.declare(QUEUE, QueueConfig(retention=RetentionData(completed_ms=0)))
        await store.put([JobSpec(id=f"{n}", **WORK) for n in range(300)])
        await run_all(store, 60)
        await store.put([JobSpec(queue=other, id="b", name="task", payload=b"[[],{}]", ttl_ms=1)])
        for _ in range(2):
            await store.tick(limit=50)
        (record,) = await store.get([JobKey(other, "b")])
    assert record is not None
    assert record.state == "failed"


async def test_a_tick_takes_no_more_steps_than_it_was_given(store: SqliteStore) -> None:
    await store.declare(QUEUE, QueueConfig(retention=RetentionData(completed_ms=0)))
    await store.put([JobSpec(id=f"{n}", **WORK) for n in range(120)])
    await run_all(store, 60)
    before = (await ask(store, "SELECT count(*) FROM jobs"))[0][0]
    assert await store.tick(limit=50) == 50
    assert (await ask(store, "SELECT count(*) FROM jobs"))[0][0] == before - 50


async def test_records_that_callers_gave_ids_do_not_count_against_the_others(
    store: SqliteStore,
) -> None:
    await store.declare(QUEUE, QueueConfig(retention=RetentionData(count=10)))
    await store.put([JobSpec(id=f"given{n}", given_id=True, **WORK) for n in range(30)])
    await store.put([JobSpec(id=f"made{n}", **WORK) for n in range(30)])
    await run_all(store, 20)
    await store.tick()
    ids = {id for (id,) in await ask(store, "SELECT id FROM jobs")}
    assert ids == {f"given{n}" for n in range(30)} | {f"made{n}" for n in range(20, 30)}


async def test_rows_that_belong_to_a_job_are_deleted_with_it(store: SqliteStore) -> None:
    await store.put([JobSpec(id="a", **WORK)])
    (lease,) = await claim(store, 1, "c1")
    ref = LeaseRef(lease.queue, lease.id, lease.token)
    await store.note([Note(lease=ref, lines=("one", "two"), steps=(("charge", b"1"),))])
    await store.alter([SendSignal(job=JobKey(QUEUE, "a"), name="go")])
    await store.settle([Complete(queue=QUEUE, id="a", token=lease.token)], worker="w", call="c2")
    assert await store.alter([Remove(job=JobKey(QUEUE, "a"))]) == ["done"]
    for table in ("jobs", "logs", "signals", "edges", "locks", "steps"):
        assert await ask(store, f"SELECT * FROM {table}") == [], table
