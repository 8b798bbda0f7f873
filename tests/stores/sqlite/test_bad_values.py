"""A value that jobq never writes, in any column, costs at most the job it belongs to."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Any

import apsw
import pytest

from jobq.core.records.jobs import (
    AnyOutcome,
    Claim,
    Complete,
    Fail,
    Failure,
    Filter,
    JobKey,
    JobSpec,
    Lease,
    LeaseRef,
    QueueName,
)
from jobq.core.records.queues import ScheduleSpec
from jobq.core.records.states import State
from jobq.core.records.workers import WorkerRecord
from jobq.stores import open_store
from jobq.stores.sqlite import SqliteStore
from jobq.stores.sqlite import damage as damages
from jobq.stores.sqlite.statements import COLUMNS
from jobq.stores.sqlite.tx import SqliteTx

QUEUE, OTHER = QueueName("t", "q"), QueueName("t", "other")
VALUES = {
    "null": "NULL",
    "text": "'text'",  # four letters: also base64
    "blob": "x'ff'",
    "real": "1.5",
    "not utf-8": "CAST(x'c328' AS TEXT)",
    "negative": "-1",
    "large": "4611686018427387904",
}
GOOD = [f"good {n}" for n in range(5)]
BAD = [f"bad {name}" for name in VALUES]
JOB_COLUMNS = [column for column in COLUMNS["job"].split(", ") if column != "pk"]
QUEUE_COLUMNS = [column for column in COLUMNS["queue"].split(", ") if column != "qid"]
CLAIM = Claim(queues=(QUEUE, OTHER), limit=20, lease_ms=60_000)


class Clock:
    """Set by hand."""

    def __init__(self) -> None:
        self.now = 1_700_000_000_000

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def store(clock: Clock) -> AsyncIterator[SqliteStore]:
    opened = open_store("memory://bad values", clock=clock)
    assert isinstance(opened, SqliteStore)
    async with opened:
        yield opened


def spec(id: str, queue: QueueName = QUEUE, **options: Any) -> JobSpec:
    return JobSpec(queue=queue, id=id, name="task", payload=b"[[],{}]", **options)


def worker(name: str) -> WorkerRecord:
    return WorkerRecord(name=name, host="h", pid=1, queues=(QUEUE,), concurrency=1)


async def put(store: SqliteStore, **options: Any) -> None:
    """Good jobs, with the jobs that will be damaged between them."""
    await store.put([spec(id, **options) for id in (*GOOD[:2], *BAD, *GOOD[2:])])
    await store.put([spec("other", OTHER)])


async def change(store: SqliteStore, sql: str) -> None:
    """Write behind the store's back. A NOT NULL column refuses NULL and keeps its value."""

    def execute(tx: SqliteTx) -> None:
        with contextlib.suppress(apsw.ConstraintError):
            tx.execute(sql)
        tx.memory.forget_queues()

    await store._write(execute)


async def damage(store: SqliteStore, column: str) -> None:
    """Give each of the bad jobs another bad value."""
    for name, value in VALUES.items():
        if (column, name) == ("at_ms", "large"):
            continue  # a time in the far future is a value that jobq writes
        await change(store, f"UPDATE jobs SET {column} = {value} WHERE id = 'bad {name}'")


async def look(store: SqliteStore) -> None:
    """Every read that may meet a bad row."""
    await store.get([JobKey(QUEUE, id) for id in (*GOOD, *BAD)])
    for state in (None, *State):
        await store.find(Filter(queue=QUEUE, state=state))
    await store.count(QUEUE)
    await store.stats(QUEUE)
    await store.queues()


def is_sound(lease: Lease) -> bool:
    """Whether a lease has values of the right types: a blob is a payload, whatever it contains."""
    texts = (lease.id, lease.name, lease.codec, lease.token, lease.key or "")
    counts = (lease.life, lease.attempt, lease.failures, lease.stalls)
    return (
        lease.payload in (b"[[],{}]", b"\xff")
        and type(lease.created_ms) is int
        and all(type(text) is str for text in texts)
        and all(type(count) is int and count >= 0 for count in counts)
    )


async def drain(
    store: SqliteStore, clock: Clock, leases: tuple[Lease, ...] = (), claim: Claim = CLAIM
) -> None:
    """Work as a worker does, until nothing is claimed and all leases and delays are over."""
    why = Failure(reason="error", type="Unreadable", message="cannot be read")
    idle = n = 0
    while idle < 3:
        n += 1
        await store.extend(
            [LeaseRef(lease.queue, lease.id, lease.token) for lease in leases], lease_ms=60_000
        )
        outcomes: list[AnyOutcome] = [
            Fail(queue=lease.queue, id=lease.id, token=lease.token, failure=why)
            if lease.unreadable
            else Complete(queue=lease.queue, id=lease.id, token=lease.token)
            for lease in leases
        ]
        leases = (await store.settle(outcomes, worker="w", call=f"drain{n}", then=claim)).leases
        for lease in leases:
            assert lease.unreadable or is_sound(lease), lease
        if not leases:
            idle += 1
            clock.now += 61_000
            await store.tick()


async def states(store: SqliteStore, *ids: str) -> list[str]:
    """How these jobs ended."""
    found = await store.get([JobKey(QUEUE, id) for id in ids])
    return ["gone" if record is None else record.state for record in found]


async def check(store: SqliteStore, column: str) -> None:
    """The good jobs are completed, and the bad ones have ended."""
    assert await states(store, *GOOD) == ["completed"] * len(GOOD)
    (other,) = await store.get([JobKey(OTHER, "other")])
    assert other is not None
    assert other.state == "completed"
    events = (await store.read_events(QUEUE, after="0")).events
    assert "gap" not in [event.kind for event in events]
    counts = {state: n for state, n in (await store.count(QUEUE)).items() if n}
    if column == "qid":
        return  # a job that names no queue belongs to none
    assert set(counts) <= {State.COMPLETED, State.FAILED}
    assert sum(counts.values()) == len(GOOD) + len(BAD)


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "keyed": {"key": "k"},
    "delayed": {"delay_ms": 5_000, "ttl_ms": 3_600_000},
}


@pytest.mark.parametrize("column", JOB_COLUMNS)
@pytest.mark.parametrize("kind", OPTIONS)
async def test_bad_values_in_waiting_jobs_stop_no_others(
    store: SqliteStore, clock: Clock, kind: str, column: str
) -> None:
    await put(store, **OPTIONS[kind])
    await damage(store, column)
    await store.tick()
    await drain(store, clock)
    await look(store)
    await drain(store, clock)
    await check(store, column)


@pytest.mark.parametrize("column", JOB_COLUMNS)
async def test_bad_values_stop_no_read(store: SqliteStore, clock: Clock, column: str) -> None:
    await put(store)
    await damage(store, column)
    await look(store)
    await drain(store, clock)
    await check(store, column)


@pytest.mark.parametrize("column", JOB_COLUMNS)
async def test_bad_values_in_active_jobs_stop_no_others(
    store: SqliteStore, clock: Clock, column: str
) -> None:
    await put(store)
    leases = (await store.settle([], worker="w", call="1", then=CLAIM)).leases
    store._opened().database.writer._memory.granted.clear()  # as if another process had claimed
    await damage(store, column)
    await drain(store, clock, leases)
    await look(store)
    await check(store, column)


@pytest.mark.parametrize("column", JOB_COLUMNS)
async def test_bad_values_in_ended_jobs_stop_no_others(
    store: SqliteStore, clock: Clock, column: str
) -> None:
    await put(store)
    await drain(store, clock)
    await damage(store, column)
    await look(store)
    await store.put([spec("new")])
    await drain(store, clock)
    assert await states(store, "new", *GOOD) == ["completed"] * 6
    clock.now += 30 * 86_400_000
    for _ in range(3):
        await store.tick()
    assert await states(store, *GOOD) == ["gone"] * len(GOOD)


@pytest.mark.parametrize("column", QUEUE_COLUMNS)
async def test_bad_values_in_queues_stop_no_other_queue(
    store: SqliteStore, clock: Clock, column: str
) -> None:
    queues = {name: QueueName("t", name) for name in VALUES if name != "large"}
    for queue in (*queues.values(), OTHER):
        await store.put([spec("job", queue)])
    for name in queues:
        await change(store, f"UPDATE queues SET {column} = {VALUES[name]} WHERE name = '{name}'")
    await look(store)
    await drain(store, clock, claim=Claim(queues=(*queues.values(), OTHER), limit=9, lease_ms=9000))
    records = await store.get([JobKey(queue, "job") for queue in (OTHER, *queues.values())])
    found = ["gone" if record is None else str(record.state) for record in records]
    assert found[0] == "completed"
    if column not in ("tenant", "name", "settings", "paused", "held_ms"):
        assert found == ["completed"] * len(found)


async def test_a_job_without_a_key_in_a_keyed_queue_fails_and_the_other_way_round(
    store: SqliteStore, clock: Clock
) -> None:
    await put(store, key="k")
    await change(store, "UPDATE jobs SET key = NULL WHERE id LIKE 'bad%'")
    await change(store, "UPDATE jobs SET key = 'k' WHERE id = 'other'")
    await store.tick()
    await drain(store, clock)
    assert await states(store, *GOOD) == ["completed"] * len(GOOD)
    assert await states(store, *BAD) == ["failed"] * len(BAD)
    (other,) = await store.get([JobKey(OTHER, "other")])
    assert other is not None
    assert other.state == "failed"


@pytest.mark.parametrize(
    "column", ["id", "name", "codec", "stalls", "attempt", "payload", "options"]
)
@pytest.mark.parametrize("value", ["x'ff'", "'text'", "7"])
async def test_a_claim_returns_no_value_of_a_wrong_type(
    store: SqliteStore, column: str, value: str
) -> None:
    await store.put([spec("a"), spec("b")])
    await change(store, f"UPDATE jobs SET {column} = {value} WHERE id = 'a'")
    leases = (await store.settle([], worker="w", call="1", then=CLAIM)).leases
    assert len(leases) == 2
    assert all(lease.unreadable or is_sound(lease) for lease in leases)


async def test_a_bad_row_far_from_both_ends_of_a_listing_is_found(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(damages, "WINDOW", 3)
    monkeypatch.setattr(damages, "STEP", 10)
    await store.put([spec(f"{n}") for n in range(50)])
    await change(store, "UPDATE jobs SET stalls = 'x' WHERE id = '25'")
    page = await store.find(Filter(queue=QUEUE), limit=50)
    assert len(page.records) == 50


async def test_the_log_names_the_job_and_the_columns(
    store: SqliteStore, caplog: pytest.LogCaptureFixture
) -> None:
    await store.put([spec("a"), spec("b")])
    await change(store, "UPDATE jobs SET stalls = 'x', due_ms = NULL WHERE id = 'b'")
    with caplog.at_level(logging.ERROR, "jobq"):
        await store.settle([], worker="w", call="1", then=CLAIM)
        await look(store)
    assert [record.message for record in caplog.records] == [
        "job b of queue q has values that jobq does not write (due_ms, stalls):"
        " it fails as unreadable; other jobs are not affected"
    ]


async def test_an_error_of_another_kind_is_raised_and_repairs_nothing(
    store: SqliteStore, caplog: pytest.LogCaptureFixture
) -> None:
    await store.put([spec("a")])

    def wrong(tx: SqliteTx) -> None:
        raise TypeError("a mistake of the caller")

    with pytest.raises(TypeError, match="mistake"):
        await store._write(wrong)
    assert caplog.records == []
    assert await states(store, "a") == ["waiting"]


@pytest.mark.parametrize("data", ["x'ff'", "'text'", "7"])
async def test_a_worker_or_schedule_that_cannot_be_read_hides_no_other(
    store: SqliteStore, clock: Clock, data: str
) -> None:
    for name in ("a", "b"):
        await store.beat(worker(name), ttl_ms=60_000)
        await store.put_schedule(
            ScheduleSpec(queue=QUEUE, id=name, every_ms=1000, template=spec(name)),
            next_ms=clock.now,
        )
    await change(store, f"UPDATE workers SET record = {data} WHERE name = 'a'")
    await change(store, f"UPDATE schedules SET spec = {data} WHERE id = 'a'")
    assert [record.name for record in await store.workers()] == ["b"]
    assert [found.spec.id for found in await store.list_schedules(due=True)] == ["b"]
    assert not (await store.beat(worker("a"), ttl_ms=60_000)).displaced
    assert len(await store.workers()) == 2
