"""What a store may offer in addition: encoding ahead, and ends of jobs without a call to
register.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from jobq.core.records.commands import Cancel
from jobq.core.records.jobs import JobRecord
from jobq.stores.base import Pipelined, Store, pipeline_of
from jobq_conformance.kit import SECOND, Desk, complete, fail, retry
from jobq_conformance.roles import needs

pytestmark = [needs("pipelined", "priorities", "keyed", "retention"), pytest.mark.topology]

PATIENCE = 10.0


@pytest.fixture
def pipeline(store: Store) -> Pipelined:
    found = pipeline_of(store)
    assert found is not None
    return found


async def heard(ends: AsyncIterator[JobRecord | None]) -> JobRecord | None:
    async with asyncio.timeout(PATIENCE):
        return await anext(ends)


def test_a_pipelined_store_has_at_least_one_lane(pipeline: Pipelined) -> None:
    assert pipeline.lanes >= 1


@pytest.mark.parametrize(
    "options", [{}, {"priority": 2}, {"key": "k"}], ids=["uniform", "with a priority", "with a key"]
)
async def test_specs_prepared_ahead_are_put_as_they_are(
    q: Desk, pipeline: Pipelined, options: dict[str, object]
) -> None:
    specs = [q.spec(f"j{n}", payload=b"%d" % n, **options) for n in range(5)]
    results = await q.store.put(pipeline.prepare(specs))
    assert [(result.id, result.duplicate) for result in results] == [
        (spec.id, False) for spec in specs
    ]
    assert [(await q.get(spec.id)).payload for spec in specs] == [spec.payload for spec in specs]
    again = await q.store.put(pipeline.prepare(specs))
    assert [(result.id, result.duplicate) for result in again] == [
        (spec.id, True) for spec in specs
    ]


async def test_the_end_of_an_expected_job_is_heard_whichever_call_ends_it(
    q_twice: tuple[Desk, Desk],
) -> None:
    first, second = q_twice
    pipeline = pipeline_of(first.store)
    assert pipeline is not None
    async with pipeline.expect(first.key("a")) as ends:
        await first.put("b", "a", "c")
        leases = await second.claim(3)
        await second.settle(*map(complete, leases))
        record = await heard(ends)
    assert record is None or (record.id, record.state.value) == ("a", "completed")


@pytest.mark.parametrize("end", ["failed", "cancelled", "expired"])
async def test_every_end_of_an_expected_job_is_heard(
    q: Desk, pipeline: Pipelined, end: str
) -> None:
    async with pipeline.expect(q.key("a")) as ends:
        await q.put_one("a", ttl_ms=SECOND if end == "expired" else None)
        if end == "failed":
            await q.settle(fail(await q.take()))
        elif end == "cancelled":
            await q.alter(Cancel(job=q.key("a")))
        else:
            q.clock.advance(2 * SECOND)
            await q.tick()
        record = await heard(ends)
        assert record in (None, await q.get("a"))


@pytest.mark.parametrize(
    "result", [None, b"1", b"\xff\n\x00", b"x" * 100_000], ids=["none", "one", "bytes", "large"]
)
@pytest.mark.parametrize("failed_before", [False, True], ids=["at once", "after a retry"])
async def test_an_expected_job_arrives_with_its_record(
    q: Desk, pipeline: Pipelined, result: bytes | None, failed_before: bool
) -> None:
    async with pipeline.expect(q.key("ä b")) as ends:
        await q.put_one("ä b", priority=3, result_ttl_ms=SECOND, payload=b"\xfe\n")
        if failed_before:
            await q.settle(retry(await q.take()))
        await q.settle(complete(await q.take(), result))
        assert await heard(ends) in (None, await q.get("ä b"))


async def test_two_that_expect_one_job_both_hear(q: Desk, pipeline: Pipelined) -> None:
    async with pipeline.expect(q.key("a")) as one, pipeline.expect(q.key("a")) as other:
        await q.put("a")
        await q.settle(complete(await q.take()))
        assert await heard(one) == await heard(other)


async def test_a_put_after_the_context_has_ended_sends_no_signal(
    q: Desk, pipeline: Pipelined
) -> None:
    async with pipeline.expect(q.key("a")):
        pass
    async with pipeline.expect(q.key("b")) as ends:
        await q.put("a", "b")
        a, b = await q.claim(2)
        await q.settle(complete(a), complete(b))
        record = await heard(ends)
        assert record is None or record.id == "b"
