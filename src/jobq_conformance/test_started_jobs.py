"""Jobs that have started and come back: their place in the order, and their events."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from jobq.core.records.commands import Cancel, Rerun, SendSignal
from jobq.core.records.jobs import AnyOutcome, Lease
from jobq.core.records.states import State
from jobq_conformance.kit import SECOND, Desk, block, complete, fail, retry, snooze

Again = Callable[[Lease], AnyOutcome]
WAYS: dict[str, Again] = {
    "retry": lambda lease: retry(lease, SECOND),
    "retry at once": retry,
    "snooze": lambda lease: snooze(lease, SECOND),
    "snooze at once": snooze,
    "signal": lambda lease: block(lease, signal="go"),
}


async def come_back(q: Desk, lease: Lease, way: str) -> None:
    """The run ends in this way, and the job waits again."""
    await q.settle(WAYS[way](lease))
    if way == "signal":
        await q.alter(SendSignal(job=q.key(lease.id), name="go"))
    q.clock.advance(SECOND)
    await q.tick()
    assert await q.state(lease.id) is State.WAITING


@pytest.mark.parametrize("way", WAYS)
async def test_a_started_job_goes_to_the_back_of_a_plain_queue(q: Desk, way: str) -> None:
    await q.put("a", "b")
    await come_back(q, await q.take(), way)
    assert await q.claim_ids() == ["b", "a"]


@pytest.mark.parametrize("way", WAYS)
async def test_a_lifo_job_goes_in_front_only_until_its_first_start(q: Desk, way: str) -> None:
    await q.put("b")
    await q.put_one("a", lifo=True)
    lease = await q.take()
    assert lease.id == "a"
    await come_back(q, lease, way)
    assert await q.claim_ids() == ["b", "a"]


@pytest.mark.parametrize("way", WAYS)
async def test_a_started_job_of_a_key_returns_to_the_front_of_its_key(q: Desk, way: str) -> None:
    await q.put("a1", "a2", key="a")
    await come_back(q, await q.take(), way)
    assert await q.claim_ids() == ["a1"]


async def test_a_rerun_begins_a_new_life_at_the_back_of_its_key(q: Desk) -> None:
    await q.put("a1", "a2", key="a")
    await q.settle(complete(await q.take()))
    await q.alter(Rerun(job=q.key("a1")))
    assert await q.claim_ids() == ["a2"]


@pytest.mark.parametrize("outcome", [retry, fail])
async def test_the_event_of_a_cancelled_run_that_failed_tells_the_error(
    q: Desk, outcome: Again
) -> None:
    await q.put("a")
    lease = await q.take()
    await q.alter(Cancel(job=q.key("a")))
    await q.settle(outcome(lease))
    event = await q.last_event("a")
    assert (event.kind, event.reason, event.failures) == ("cancelled", "cancelled", 1)
    assert (event.error, event.fingerprint) == ("ValueError: boom", "f00d")


async def test_the_event_of_a_stall_gives_its_reason(q: Desk) -> None:
    await q.put("a")
    await q.take(lease_ms=SECOND)
    q.clock.advance(2 * SECOND)
    await q.tick()
    event = await q.last_event("a")
    assert (event.kind, event.state, event.reason) == ("stalled", State.WAITING, "stalled")
