"""JobRecord.options: the options of a call can be read back."""

from __future__ import annotations

import pytest

from jobq.core.call_options import NO_OPTIONS, CallOptions
from jobq.core.commands import Reprioritise, Rerun
from jobq.core.records import RetryData, UniqueSpec
from jobq.core.states import State
from jobq_conformance.kit import HOUR, SECOND, Desk, complete, fail, read_all

RETRY = RetryData(max_retries=7, base_ms=500, factor=1.5, cap_ms=90_000, jitter=0.25)
GIVEN: list[dict[str, object]] = [
    {"retry": RETRY},
    {"retry": RetryData(max_retries=0, delays_ms=(1, 20, 300))},
    {"timeout_ms": 0},
    {"timeout_ms": 1500},
    {"max_stalls": 0},
    {"max_stalls": 3},
    {"ttl_ms": 5 * SECOND},
    {"result_ttl_ms": HOUR},
    {"cost": 4},
    {"lifo": True},
    {"delay_ms": 3 * SECOND},
    {"on_child_failure": "continue"},
    {"unique": UniqueSpec(lock="abc")},
    {"unique": UniqueSpec(lock="abc", mode="throttle", ttl_ms=HOUR)},
    {
        "retry": RETRY,
        "timeout_ms": 9,
        "max_stalls": 1,
        "ttl_ms": HOUR,
        "result_ttl_ms": HOUR,
        "cost": 2,
        "lifo": True,
    },
]


@pytest.mark.parametrize("given", GIVEN, ids=lambda given: "-".join(given))
async def test_what_a_call_gave_can_be_read_back(q: Desk, given: dict[str, object]) -> None:
    await q.put_one("a", **given)
    expected = CallOptions(**given)  # type: ignore[arg-type]
    assert (await q.get("a")).options == expected
    (listed,) = await read_all(q.store, q.queue)
    assert listed.options == expected


async def test_a_time_can_be_read_back(q: Desk) -> None:
    at = q.clock() + HOUR
    await q.put_one("a", at_ms=at)
    assert (await q.get("a")).options == CallOptions(at_ms=at)


async def test_a_call_that_gave_nothing_reads_as_nothing(q: Desk) -> None:
    await q.put_one("a")
    await q.put_one("named", codec="msgpack", meta={"a": "b"})
    assert [(await q.get(id)).options for id in ("a", "named")] == [NO_OPTIONS, NO_OPTIONS]


async def test_options_stay_with_a_job_to_its_end_and_beyond(q: Desk) -> None:
    options = CallOptions(retry=RETRY, timeout_ms=1500, max_stalls=2, cost=3)
    await q.put_one("a", retry=RETRY, timeout_ms=1500, max_stalls=2, cost=3)
    await q.alter(Reprioritise(job=q.key("a"), priority=5))
    lease = await q.take()
    assert (await q.get("a")).options == options
    await q.settle(fail(lease))
    record = await q.get("a")
    assert (record.state, record.options, record.priority) == (State.FAILED, options, 5)
    await q.alter(Rerun(job=q.key("a")))
    await q.settle(complete(await q.take()))
    record = await q.get("a")
    assert (record.state, record.options) == (State.COMPLETED, options)


async def test_a_record_says_whether_the_caller_chose_its_id(q: Desk) -> None:
    await q.put_one("mine", given_id=True)
    await q.put_one("made")
    assert [r.given_id for r in await q.store.get([q.key("mine"), q.key("made")]) if r] == [
        True,
        False,
    ]
    await q.settle(complete(await q.take()))
    assert (await q.get("mine")).given_id
