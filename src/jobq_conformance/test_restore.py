"""restore: failed jobs of another store are stored as they were."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from jobq.core.records.commands import Remove, Rerun
from jobq.core.records.jobs import JobRecord, UniqueSpec
from jobq.core.records.queues import Limits, QueueConfig, RetentionData
from jobq.core.records.states import State
from jobq.errors import ConfigError, InvalidJob
from jobq_conformance.kit import HOUR, LEASE, MINUTE, SECOND, Desk, complete, fail, retry
from jobq_conformance.roles import needs

pytestmark = needs("operators", "reads", "delays")


async def failed(q: Desk, id: str = "a", **options: object) -> JobRecord:
    """A failed job with two failed runs, which is then removed."""
    await q.put_one(id, **options)
    q.clock.advance(SECOND)
    await q.settle(retry(await q.take(), message="first"))
    q.clock.advance(SECOND)
    await q.settle(fail(await q.take(), message="second", reason="timeout"))
    record = await q.get(id)
    assert await q.alter(Remove(job=q.key(id)))
    q.clock.advance(MINUTE)
    return record


async def test_a_failed_job_is_stored_as_it_was(q: Desk) -> None:
    record = await failed(q, priority=3, meta={"trace": "7"}, given_id=True, result_ttl_ms=HOUR)
    assert await q.store.restore([record]) == [True]
    now = q.clock()
    assert await q.get("a") == replace(record, finished_ms=now, life=(await q.get("a")).life)
    assert len((await q.get("a")).errors) == 2
    assert await q.counts() == {"failed": 1}
    assert [e.kind for e in (await q.events("a"))[-2:]] == ["accepted", "failed"]


async def test_a_job_that_was_created_at_0_is_restored_with_its_options(q: Desk) -> None:
    record = await failed(q, priority=3, meta={"trace": "7"}, timeout_ms=MINUTE)
    assert await q.store.restore([replace(record, created_ms=0)]) == [True]
    found = await q.get("a")
    assert (found.options, found.failure) == (record.options, record.failure)


async def test_a_restored_job_can_run_again(q: Desk) -> None:
    assert await q.store.restore([await failed(q, priority=2)]) == [True]
    assert await q.alter(Rerun(job=q.key("a")))
    lease = await q.take()
    assert (lease.id, lease.attempt, lease.failures) == ("a", 3, 0)
    await q.settle(complete(lease))
    assert await q.state("a") is State.COMPLETED


async def test_an_id_in_use_is_left_alone(q: Desk) -> None:
    record = await failed(q)
    await q.put_one("a", payload=b"other")
    assert await q.store.restore([record, replace(record, id="b")]) == [False, True]
    assert (await q.get("a")).payload == b"other"
    assert await q.store.restore([record, replace(record, id="b")]) == [False, False]


async def test_a_job_that_failed_by_a_stall_is_restored(q: Desk) -> None:
    await q.put_one("a", max_stalls=0)
    await q.take()
    q.clock.advance(LEASE + SECOND)
    await q.tick()
    record = await q.get("a")
    assert (record.state, record.stalls) == (State.FAILED, 1)
    await q.alter(Remove(job=q.key("a")))
    assert await q.store.restore([record]) == [True]
    assert (await q.get("a")).stalls == 1


async def test_a_job_that_failed_without_a_run_is_restored(q: Desk) -> None:
    await q.put_one("a", ttl_ms=SECOND)
    q.clock.advance(MINUTE)
    await q.tick()
    record = await q.get("a")
    await q.alter(Remove(job=q.key("a")))
    assert await q.store.restore([record]) == [True]
    restored = await q.get("a")
    assert (restored.failure, restored.errors, restored.attempt) == (record.failure, (), 0)


async def test_a_restored_job_takes_no_lock_and_is_not_forwarded(q: Desk) -> None:
    record = await failed(q, unique=UniqueSpec(lock="one"))
    await q.store.declare(q.queue, QueueConfig(dead_letters="graves"))
    assert await q.store.restore([record]) == [True]
    assert not (await q.put_one("b", unique=UniqueSpec(lock="one"))).duplicate
    await q.tick()
    assert await q.beside("graves").counts() == {}


async def test_the_retention_of_a_restored_job_begins_now(q: Desk) -> None:
    await q.store.declare(q.queue, QueueConfig(retention=RetentionData(failed_ms=HOUR)))
    record = await failed(q)
    q.clock.advance(10 * HOUR)
    await q.store.restore([record])
    assert await q.state("a") is State.FAILED
    q.clock.advance(HOUR)
    assert await q.look("a") is None


async def test_times_of_a_store_whose_clock_is_ahead_are_not_in_the_future(q: Desk) -> None:
    record = await failed(q)
    assert record.due_ms is not None
    assert record.started_ms is not None
    later = {name: getattr(record, name) + HOUR for name in ("created_ms", "due_ms", "started_ms")}
    await q.store.declare(q.beside("limited").queue, QueueConfig(limits=Limits(limit=5)))
    for desk in (q, q.beside("limited")):
        assert await desk.store.restore([replace(record, queue=desk.queue, **later)]) == [True]
        restored = await desk.get("a")
        assert restored.created_ms == restored.started_ms == restored.finished_ms == q.clock()
        assert await desk.alter(Rerun(job=desk.key("a")))
        await desk.settle(complete(await desk.take()))


async def test_other_jobs_are_refused(q: Desk) -> None:
    await q.put_one("waiting")
    with pytest.raises(InvalidJob, match="only failed jobs"):
        await q.store.restore([await q.get("waiting")])
    record = await failed(q.beside("keyed"), key="k")
    with pytest.raises(ConfigError, match="plain"):
        await q.store.restore([replace(record, queue=q.queue)])
