"""JobRecord.options: the options of a call can be read back."""

from __future__ import annotations

import pytest

from jobq.core.records.commands import Reprioritise, Rerun
from jobq.core.records.jobs import NO_OPTIONS, CallOptions, Lease, QueueName, RetryData, UniqueSpec
from jobq.core.records.queues import QueueConfig
from jobq.core.records.states import State
from jobq.core.rules.options import FIELDS, LETTER, Option
from jobq_conformance.kit import HOUR, Desk, complete, fail, read_all, retry
from jobq_conformance.spec_values import example

RETRY = RetryData(max_retries=7, base_ms=500, factor=1.5, cap_ms=90_000, jitter=0.25)
OF_CALL = [option for option in FIELDS if option.of_call]
GIVEN: list[dict[str, object]] = [
    *({option.field: example(option)} for option in OF_CALL),
    {
        option.field: example(option)
        for option in OF_CALL
        if option.field not in ("at_ms", "delay_ms")
    },
    {"retry": RETRY},
    {"retry": RetryData(max_retries=0, delays_ms=(1, 20, 300))},
    {"timeout_ms": 0},
    {"timeout_ms": 1500},
    {"max_stalls": 0},
    {"unique": UniqueSpec(lock="abc", mode="throttle", ttl_ms=HOUR)},
]


@pytest.mark.parametrize("given", GIVEN, ids=lambda given: "-".join(given))
async def test_what_a_call_gave_can_be_read_back(q: Desk, given: dict[str, object]) -> None:
    await q.put_one("a", **given)
    expected = CallOptions(**given)  # type: ignore[arg-type]
    assert (await q.get("a")).options == expected
    (listed,) = await read_all(q.store, q.queue)
    assert listed.options == expected


@pytest.mark.parametrize("option", FIELDS, ids=lambda option: option.field)
async def test_a_lease_has_the_options_that_a_worker_needs(q: Desk, option: Option) -> None:
    if not option.lease:
        assert option.field in ("codec", "key") or option.field not in Lease.__struct_fields__
        return
    value = example(option)
    await q.put_one("a", **{option.field: value})
    first = await q.take()
    assert getattr(first, option.field) == value
    await q.settle(retry(first, 0))
    assert getattr(await q.take(), option.field) == value


@pytest.mark.parametrize("option", LETTER, ids=lambda option: option.field)
async def test_a_dead_letter_has_the_options_of_its_job(q: Desk, option: Option) -> None:
    await q.store.declare(q.queue, QueueConfig(dead_letters="dead"))
    await q.put_one("a", **{option.field: example(option)})
    await q.settle(fail(await q.take()))
    await q.tick()
    (letter,) = await read_all(q.store, QueueName(q.queue.tenant, "dead"))
    assert option.of(letter) == example(option)


@pytest.mark.parametrize("option", FIELDS, ids=lambda option: option.field)
async def test_a_replaced_job_has_the_options_of_the_new_call_except_those_it_keeps(
    q: Desk, option: Option
) -> None:
    if option.field in ("given_id", "key", "after", "unique", "reserved", "at_ms", "delay_ms"):
        return  # they name the job, the lock or its time
    unique = UniqueSpec(lock="l", mode="keep_last")
    await q.put_one("old", unique=unique)
    assert (await q.put_one("new", unique=unique, **{option.field: example(option)})).duplicate
    expected = option.default if option.kept else example(option)
    assert option.of(await q.get("old")) == expected


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
