"""Two handles whose clocks differ by a minute pass jobs to each other.

The times of a job never go back, whichever handle changes it: that is checked for every test here,
and after it by the audit (audit.py). Run times and waiting times are not negative.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack

import pytest

from jobq.core.records.commands import Cancel, Promote, Reprioritise, Rerun
from jobq.core.records.jobs import AnyOutcome, Lease
from jobq.core.records.queues import Limits, QueueConfig
from jobq_conformance.audit import audit
from jobq_conformance.kit import (
    HOUR,
    MINUTE,
    SECOND,
    Desk,
    FakeClock,
    complete,
    fail,
    fresh_queue,
    release,
    retry,
    snooze,
)
from jobq_conformance.places import Opening

Desks = tuple[Desk, Desk]

CONFIGS = {
    "plain": QueueConfig(),
    "limited": QueueConfig(limits=Limits(limit=50)),
    "keyed": QueueConfig(mode="keyed"),
}


@pytest.fixture(params=CONFIGS)
def mode(request: pytest.FixtureRequest) -> str:
    """The kinds of queues, which a store may serve by different code."""
    return str(request.param)


@pytest.fixture
async def desks(opening: Opening, mode: str) -> AsyncIterator[Desks]:
    """The same queue through a handle whose clock is ahead, and one whose clock is behind."""
    behind = FakeClock()
    ahead = FakeClock(behind.now_ms + MINUTE)
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(opening(ahead))
        second = await stack.enter_async_context(opening(behind))
        one = Desk(first, fresh_queue(), ahead)
        other = Desk(second, one.queue, behind, one.audited)
        await other.store.declare(one.queue, CONFIGS[mode])
        yield one, other
        await audit(first, one.queue)
        await check_times(one)


async def check_times(q: Desk) -> None:
    """The events of each job are in the order of their times, and no span is negative."""
    last: dict[str, int] = {}
    for event in await q.events():
        message = f"{event.job}: {event.kind}"
        assert event.at_ms >= last.get(event.job, 0), message
        assert event.started_ms is None or event.started_ms >= event.created_ms, message
        if event.finished_ms is not None:
            assert event.finished_ms >= (event.started_ms or event.created_ms), message
        last[event.job] = event.at_ms


async def put(q: Desk, mode: str, *ids: str, **options: object) -> None:
    await q.put(*ids, **options, **({"key": "k"} if mode == "keyed" else {}))


async def take(q: Desk, worker: str = "w1") -> Lease:
    """Claim the next job. The store's time may advance with every call of the other handle."""
    lease = await q.take(worker, lease_ms=HOUR)
    assert lease.expires_ms == lease.started_ms + HOUR
    assert lease.started_ms >= lease.created_ms
    return lease


@pytest.mark.parametrize("turned", [False, True], ids=["ahead first", "behind first"])
async def test_a_job_is_put_claimed_and_completed_by_different_handles(
    desks: Desks, mode: str, turned: bool
) -> None:
    one, other = reversed(desks) if turned else desks
    await put(one, mode, "a")
    lease = await take(other)
    await one.settle(complete(lease))
    (event,) = [e for e in await other.events("a") if e.kind == "completed"]
    record = await other.get("a")
    assert event.finished_ms is not None
    assert event.finished_ms == record.finished_ms
    assert event.finished_ms >= lease.started_ms
    minutes = await other.store.metrics(other.queue, minutes=24 * 60)
    assert all(each.run_ms >= 0 and each.wait_ms >= 0 for each in minutes)


@pytest.mark.parametrize("turned", [False, True], ids=["ahead first", "behind first"])
async def test_a_job_ends_a_run_and_starts_again_at_the_other_handle(
    desks: Desks, mode: str, turned: bool
) -> None:
    one, other = reversed(desks) if turned else desks
    outcomes: tuple[Callable[[Lease], AnyOutcome], ...] = (retry, snooze, release, fail)
    for n, outcome in enumerate(outcomes):
        id = f"j{n}"
        await put(one, mode, id)
        await other.settle(outcome(await take(one)))
        if outcome is fail:
            assert await one.alter(Rerun(job=one.key(id)))
        lease = await take(other, "w2")
        assert lease.id == id
        await other.settle(complete(lease), worker="w2")


async def test_a_job_that_one_handle_promotes_does_not_start_before_at_the_other(
    desks: Desks, mode: str
) -> None:
    ahead, behind = desks
    await put(behind, mode, "a", delay_ms=10 * SECOND)
    assert await ahead.alter(Promote(job=ahead.key("a")))
    await behind.settle(complete(await take(behind)))
    await put(behind, mode, "b", "c", delay_ms=2 * MINUTE)  # due for one of them
    ahead.clock.advance(3 * MINUTE)
    await ahead.tick()
    await behind.settle(complete(await take(behind)))
    await ahead.settle(complete(await take(ahead)))


async def test_a_job_is_changed_and_cancelled_by_handles_in_turns(desks: Desks, mode: str) -> None:
    ahead, behind = desks
    await put(behind, mode, "a")
    for n, desk in enumerate((ahead, behind, ahead)):
        assert await desk.alter(Reprioritise(job=desk.key("a"), priority=n + 1))
    assert await behind.alter(Cancel(job=behind.key("a"), reason="enough"))
    record = await ahead.get("a")
    assert record.finished_ms is not None
    assert record.finished_ms >= record.created_ms
