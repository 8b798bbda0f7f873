"""Jobs with values that no caller should have been able to store: they are listed, as damaged.

A store need not refuse such values, because callers check them. It must live with them.
"""

from __future__ import annotations

import math

import pytest

from jobq.core.records.jobs import Filter, JobRecord, RetryData, UniqueSpec
from jobq.core.records.states import State
from jobq.core.rules.new_jobs import Checked
from jobq.errors import JobqError
from jobq_conformance.kit import Desk

FAR = 2**61
"""Milliseconds: after the last year of the calendar."""
POLICIES = [
    *(RetryData(factor=number) for number in (math.nan, math.inf, -1.0, 0.0)),
    *(RetryData(jitter=number) for number in (math.nan, math.inf, -1.0, 7.0)),
    *(RetryData(base_ms=number) for number in (-1, FAR)),
    *(RetryData(cap_ms=number) for number in (-1, FAR)),
    RetryData(max_retries=-1),
    RetryData(delays_ms=(-1,)),
    RetryData(delays_ms=(FAR,)),
]
BAD: list[dict[str, object]] = [
    *[dict[str, object](retry=policy) for policy in POLICIES],
    {"timeout_ms": FAR},
    {"result_ttl_ms": FAR},
    {"unique": UniqueSpec(lock="l", ttl_ms=FAR)},
]


@pytest.mark.parametrize("bad", BAD, ids=str)
async def test_a_damaged_job_is_listed_with_its_id_and_state_beside_others(
    q: Desk, bad: dict[str, object]
) -> None:
    await q.put("first")
    try:
        await q.store.put(Checked([q.spec("bad", **bad)]))  # past the check of our stores
    except JobqError:
        return  # the store refuses it all the same, as a jq-server does
    await q.put("last")
    page = await q.store.find(Filter(queue=q.queue))
    assert {record.id: record.state for record in page.records} == dict.fromkeys(
        ("first", "bad", "last"), State.WAITING
    )
    found = {record.id: _damaged(record) for record in page.records}
    assert found == {"first": False, "bad": True, "last": False}
    assert _damaged(await q.get("bad"))
    assert not _damaged(await q.get("first"))


def _damaged(record: JobRecord) -> bool:
    return record.failure is not None and record.failure.type == "Unreadable"
