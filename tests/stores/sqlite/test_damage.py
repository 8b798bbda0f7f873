"""Unreadable data in the file: a bad row fails one job, and a bad queue leaves the others alone."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

import pytest

from jobq import CorruptStore, Queue, Worker
from jobq.core.records.jobs import Claim, Complete, Filter, JobKey, JobSpec, Lease, QueueName
from jobq.core.records.queues import Limits, QueueConfig
from jobq.core.records.states import State
from jobq.stores import open_store
from jobq.stores.sqlite import SqliteStore, trimming

QUEUE, OTHER = QueueName("t", "q"), QueueName("t", "other")


def spec(id: str, queue: QueueName = QUEUE, **options: object) -> JobSpec:
    return JobSpec(queue=queue, id=id, name="task", payload=b"[[],{}]", **options)  # type: ignore[arg-type]


@pytest.fixture
async def store() -> AsyncIterator[SqliteStore]:
    opened = open_store("memory://damage")
    assert isinstance(opened, SqliteStore)
    async with opened:
        yield opened


async def damage(store: SqliteStore, sql: str, *values: object) -> None:
    await store._write(lambda tx: (tx.execute(sql, values), tx.memory.forget_queues())[0])


async def claim(
    store: SqliteStore, call: str, *queues: QueueName, n: int = 100
) -> tuple[Lease, ...]:
    wanted = Claim(queues=queues or (QUEUE,), limit=n, lease_ms=60_000)
    return (await store.settle([], worker="w", call=call, then=wanted)).leases


@pytest.mark.parametrize("blob", [b"\xff", b"", b"\x93\x01", "text", 7, b"\xdb\xff\xff\xff\xff"])
async def test_a_job_with_unreadable_options_is_claimed_as_unreadable_beside_good_ones(
    store: SqliteStore, blob: object
) -> None:
    await store.put([spec(f"{n}", timeout_ms=1000) for n in range(7)])
    await damage(store, "UPDATE jobs SET options = ? WHERE id = '3'", blob)
    for record in (await store.find(Filter(queue=QUEUE))).records:
        assert record.state is State.WAITING
        damaged = record.failure is not None and record.failure.type == "Unreadable"
        assert damaged == (record.id == "3")
    leases = await claim(store, "1")
    assert [(lease.id, lease.unreadable) for lease in leases] == [
        (f"{n}", n == 3) for n in range(7)
    ]
    done = [Complete(queue=QUEUE, id=lease.id, token=lease.token) for lease in leases]
    assert (await store.settle(done, worker="w", call="2")).stale == ()
    assert (await store.count(QUEUE))[State.COMPLETED] == 7


async def test_a_worker_fails_an_unreadable_job_and_runs_the_others(tmp_path: object) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    queue = Queue("work", url)
    ran: list[int] = []

    @queue.task(timeout=60)
    async def note(n: int) -> None:
        ran.append(n)

    async with queue:
        jobs = [await note.options(ttl=600).enqueue(n) for n in range(5)]
        async with open_store(url) as other:
            assert isinstance(other, SqliteStore)
            await damage(other, "UPDATE jobs SET options = x'ff' WHERE id = ?", jobs[2].id)
        async with Worker(queue):
            infos = [await job.wait(timeout=30) for job in jobs]
    assert [info.state for info in infos] == [
        "completed",
        "completed",
        "failed",
        "completed",
        "completed",
    ]
    assert sorted(ran) == [0, 1, 3, 4]
    failure = infos[2].failure
    assert failure is not None
    assert (failure.type, failure.reason) == ("Unreadable", "error")
    assert "cannot be read" in failure.message


async def test_an_unreadable_failure_is_shown_as_unreadable(store: SqliteStore) -> None:
    await store.put([spec("a")])
    await damage(store, "UPDATE jobs SET failure = x'00ff'")
    (record,) = await store.get([JobKey(QUEUE, "a")])
    assert record is not None
    assert record.failure is not None
    assert record.failure.type == "Unreadable"
    assert len((await store.find(Filter(queue=QUEUE))).records) == 1


async def test_a_queue_with_unreadable_settings_leaves_the_others_alone(
    store: SqliteStore, caplog: pytest.LogCaptureFixture
) -> None:
    await store.declare(QUEUE, QueueConfig(limits=Limits(limit=3)))
    await store.put([spec("a"), spec("b", OTHER)])
    await damage(store, "UPDATE queues SET settings = x'ff' WHERE name = 'q'")
    with caplog.at_level(logging.ERROR, "jobq"):
        assert [lease.id for lease in await claim(store, "1", QUEUE, OTHER)] == ["b"]
        assert await claim(store, "2", QUEUE, OTHER) == ()
        await store.tick()
    assert len([record for record in caplog.records if "cannot be read" in record.message]) == 1
    with pytest.raises(CorruptStore, match="queue 'q'"):
        await claim(store, "3", QUEUE)
    with pytest.raises(CorruptStore, match="queue 'q'"):
        await store.declare(QUEUE, QueueConfig(limits=Limits(limit=4), limits_version=2))
    assert {record.queue for record in await store.queues("t")} == {QUEUE, OTHER}


async def test_a_queue_with_unreadable_settings_can_be_obliterated(store: SqliteStore) -> None:
    await store.declare(QUEUE, QueueConfig(limits=Limits(limit=3)))
    await store.put([spec("a")])
    await damage(store, "UPDATE queues SET settings = x'ff'")
    assert await store.obliterate(QUEUE, force=True)
    await store.put([spec("b")])
    assert [lease.id for lease in await claim(store, "1")] == ["b"]


async def test_the_counters_are_corrected_when_rows_have_vanished(store: SqliteStore) -> None:
    await store.put([spec(f"{n}") for n in range(10)])
    await damage(store, "DELETE FROM jobs WHERE id IN ('2', '5')")
    assert len(await claim(store, "1")) == 8
    counts = await store.count(QUEUE)
    assert (counts[State.WAITING], counts[State.ACTIVE]) == (0, 8)


async def test_an_unreadable_entry_of_the_log_is_a_gap_and_not_the_end(store: SqliteStore) -> None:
    for n in range(3):
        await store.put([spec(f"{n}")])
    await damage(
        store, "UPDATE events SET entry = x'93ff' WHERE at = (SELECT min(at) + 1 FROM events)"
    )
    events = (await store.read_events(QUEUE, after="0")).events
    assert [(str(event.kind), event.job) for event in events] == [
        ("accepted", "0"),
        ("gap", ""),
        ("accepted", "2"),
    ]


@pytest.mark.parametrize("entry", [b"\x93\xff", b"\x92\x02\x01", b"\x05"])
async def test_an_unreadable_entry_does_not_stop_the_upkeep_that_drops_it(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch, entry: bytes
) -> None:
    monkeypatch.setattr(trimming, "LOG_EVENTS", 2)
    for n in range(5):
        await store.put([spec(f"{n}")])
    await damage(store, "UPDATE events SET entry = ?", entry)
    await store.tick()
    events = (await store.read_events(QUEUE, after="0")).events
    assert [str(event.kind) for event in events] == [
        "gap",
        "gap",
        "gap",
    ]  # what was dropped, and the two that are kept
