"""The record of a job that a caller waits for stays readable, however short the retention is."""

from __future__ import annotations

import pytest

from jobq.core.records.commands import Cancel
from jobq.core.records.defaults import WATCHED_MS
from jobq.core.records.jobs import Topic
from jobq.core.records.queues import QueueConfig, RetentionData
from jobq_conformance.kit import SECOND, Desk, complete, fail
from jobq_conformance.test_signals import heard

NOTHING = RetentionData(completed_ms=0, failed_ms=0, cancelled_ms=0)


@pytest.mark.parametrize("end", ["completed", "failed", "cancelled"])
async def test_a_listener_reads_the_end_of_a_job_without_retention(q: Desk, end: str) -> None:
    await q.store.declare(q.queue, QueueConfig(retention=NOTHING))
    await q.put("a")
    lease = await q.take()
    async with q.store.listen([Topic("ended", q.queue, "a")]) as signals:
        if end == "cancelled":
            await q.alter(Cancel(job=q.key("a")))
        await q.settle(complete(lease, b"7") if end == "completed" else fail(lease))
        assert (await heard(signals)).job == "a"
    await q.tick()
    assert await q.states("a") == [end]
    if end == "completed":
        assert (await q.get("a")).result == b"7"
    q.clock.advance(WATCHED_MS - 1)
    assert await q.states("a") == [end]
    q.clock.advance(1)
    assert await q.states("a") == [None]
    await q.tick()
    assert await q.counts() == {}


async def test_the_record_of_a_job_without_a_waiting_caller_goes_at_once(q: Desk) -> None:
    await q.store.declare(q.queue, QueueConfig(retention=NOTHING))
    await q.run("a")
    assert await q.states("a") == [None]


async def test_an_explicit_result_ttl_is_not_made_longer(q: Desk) -> None:
    await q.put_one("a", result_ttl_ms=SECOND)
    lease = await q.take()
    async with q.store.listen([Topic("ended", q.queue, "a")]) as signals:
        await q.settle(complete(lease))
        await heard(signals)
    q.clock.advance(SECOND)
    assert await q.states("a") == [None]


async def test_a_longer_retention_is_not_cut_short(q: Desk) -> None:
    await q.store.declare(
        q.queue, QueueConfig(retention=RetentionData(completed_ms=2 * WATCHED_MS))
    )
    await q.put("a")
    lease = await q.take()
    async with q.store.listen([Topic("ended", q.queue, "a")]) as signals:
        await q.settle(complete(lease))
        await heard(signals)
    q.clock.advance(WATCHED_MS + SECOND)
    await q.tick()
    assert await q.states("a") == ["completed"]
