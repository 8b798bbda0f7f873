"""Meta and failed runs that cannot be read affect only their own job."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from jobq.core.records.jobs import Claim, Complete, Fail, Failure, JobKey, JobSpec, QueueName
from jobq.core.records.queues import QueueConfig
from jobq.core.records.states import State
from jobq.stores import open_store
from jobq.stores.sqlite import SqliteStore

QUEUE = QueueName("t", "carried")


@pytest.fixture
async def store() -> AsyncIterator[SqliteStore]:
    opened = open_store("memory://carried")
    assert isinstance(opened, SqliteStore)
    async with opened:
        yield opened


async def damage(store: SqliteStore, sql: str, *values: object) -> None:
    await store._write(lambda tx: tx.execute(sql, values))


def spec(id: str) -> JobSpec:
    return JobSpec(queue=QUEUE, id=id, name="task", payload=b"[[],{}]", meta={"trace": id})


CLAIM = Claim(queues=(QUEUE,), limit=10, lease_ms=60_000)


@pytest.mark.parametrize("blob", [b"\xff", b"", "text", 7])
async def test_unreadable_options_stop_no_queue_whose_events_carry_meta(
    store: SqliteStore, blob: object
) -> None:
    await store.declare(QUEUE, QueueConfig(event_meta=("trace",)))
    await store.put([spec(f"{n}") for n in range(5)])
    await damage(store, "UPDATE jobs SET options = ? WHERE id = '2'", blob)
    leases = (await store.settle([], worker="w", call="1", then=CLAIM)).leases
    assert [(lease.id, lease.unreadable) for lease in leases] == [
        (f"{n}", n == 2) for n in range(5)
    ]
    await store.settle(
        [Complete(queue=QUEUE, id=lease.id, token=lease.token) for lease in leases],
        worker="w",
        call="2",
    )
    assert (await store.count(QUEUE))[State.COMPLETED] == 5
    ended = [
        event
        for event in (await store.read_events(QUEUE, after="0")).events
        if event.kind == "completed"
    ]
    assert {event.job: event.meta for event in ended} == {
        f"{n}": None if n == 2 else {"trace": f"{n}"} for n in range(5)
    }


async def test_a_failed_run_that_cannot_be_read_is_shown_as_unreadable(store: SqliteStore) -> None:
    await store.put([spec("a")])
    (lease,) = (await store.settle([], worker="w", call="1", then=CLAIM)).leases
    why = Failure(reason="error", type="ValueError", message="boom")
    await store.settle(
        [Fail(queue=QUEUE, id="a", token=lease.token, failure=why)], worker="w", call="2"
    )
    await damage(store, "UPDATE errors SET failure = x'ff'")
    (record,) = await store.get([JobKey(QUEUE, "a")])
    assert record is not None
    assert [error.type for error in record.errors] == ["Unreadable"]
