"""cancel: at once before a job runs, and by asking while it runs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from jobq.core.records.commands import AnyCommand, Cancel, Remove
from jobq.core.records.jobs import AnyOutcome, Lease
from jobq.core.records.states import State
from jobq_conformance.kit import (
    LEASE,
    SECOND,
    Desk,
    block,
    complete,
    fail,
    hold,
    ref,
    release,
    retry,
    snooze,
)
from jobq_conformance.roles import needs

pytestmark = needs("operators")


async def test_a_waiting_job_is_cancelled_at_once(q: Desk) -> None:
    await q.put("a", "b")
    assert await q.alter(Cancel(job=q.key("a")))
    record = await q.get("a")
    assert (record.state, record.reason, record.finished_ms) == (
        State.CANCELLED,
        "cancelled",
        q.clock.now_ms,
    )
    assert await q.claim_ids() == ["b"]
    event = await q.last_event("a")
    assert (event.kind, event.previous, event.reason) == ("cancelled", State.WAITING, "cancelled")


async def test_a_delayed_job_is_cancelled_at_once(q: Desk) -> None:
    await q.put_one("a", delay_ms=SECOND)
    assert await q.alter(Cancel(job=q.key("a")))
    q.clock.advance(2 * SECOND)
    assert await q.claim() == []
    assert await q.kinds("a") == ["accepted", "cancelled"]


async def test_a_job_in_backoff_is_cancelled_at_once(q: Desk) -> None:
    await q.put("a")
    await q.settle(retry(await q.take(), SECOND))
    assert await q.alter(Cancel(job=q.key("a")))
    q.clock.advance(2 * SECOND)
    assert await q.claim() == []


async def test_the_reason_given_is_kept(q: Desk) -> None:
    await q.put("a")
    await q.alter(Cancel(job=q.key("a"), reason="customer left"))
    assert (await q.get("a")).reason == "customer left"
    assert (await q.last_event("a")).reason == "customer left"


async def test_an_ended_or_unknown_job_cannot_be_cancelled(q: Desk) -> None:
    await q.run("done")
    await q.put("broken")
    await q.settle(fail(await q.take()))
    await q.put("gone")
    await q.alter(Cancel(job=q.key("gone")))
    commands = [Cancel(job=q.key(id)) for id in ("done", "broken", "gone", "nobody")]
    assert await q.store.alter(commands) == ["late"] * 3 + ["missing"]
    assert await q.states("done", "broken", "gone") == ["completed", "failed", "cancelled"]


async def test_a_running_job_is_asked(q: Desk) -> None:
    await q.put("a", "b")
    a, b = await q.claim(2)
    assert await q.alter(Cancel(job=q.key("a")))
    record = await q.get("a")
    assert (record.state, record.cancel_asked) == (State.ACTIVE, True)
    assert await q.store.extend([ref(a), ref(b)], lease_ms=LEASE) == ["cancel", "held"]


async def test_asking_twice_is_asking(q: Desk) -> None:
    await q.put("a")
    await q.take()
    assert await q.store.alter([Cancel(job=q.key("a")), Cancel(job=q.key("a"))]) == ["done", "done"]


async def test_a_job_asked_to_stop_that_succeeds_is_completed(q: Desk) -> None:
    await q.put("a")
    lease = await q.take()
    await q.alter(Cancel(job=q.key("a")))
    await q.settle(complete(lease, b"2"))
    record = await q.get("a")
    assert (record.state, record.result) == (State.COMPLETED, b"2")


UNFINISHED: dict[str, Callable[[Lease], AnyOutcome]] = {
    "retry": retry,
    "fail": fail,
    "snooze": snooze,
    "release": release,
    "hold": lambda lease: hold(lease, SECOND),
    "block": lambda lease: block(lease, signal="go"),
}


@pytest.mark.parametrize("outcome", UNFINISHED.values(), ids=UNFINISHED.keys())
async def test_a_job_asked_to_stop_ends_as_cancelled_by_anything_but_success(
    q: Desk, outcome: Callable[[Lease], AnyOutcome]
) -> None:
    await q.put("a")
    lease = await q.take("bee")
    await q.alter(Cancel(job=q.key("a"), reason="enough"))
    await q.settle(outcome(lease), worker="bee")
    record = await q.get("a")
    assert (record.state, record.reason, record.attempt) == (State.CANCELLED, "enough", 1)
    event = await q.last_event("a")
    assert (event.kind, event.previous, event.worker) == ("cancelled", State.ACTIVE, "bee")
    assert await q.claim() == []


@pytest.mark.parametrize("repaired_by", ["claim", "tick"])
async def test_a_stalled_job_that_was_asked_to_stop_is_cancelled(q: Desk, repaired_by: str) -> None:
    await q.put("a")
    lease = await q.take(lease_ms=SECOND)
    await q.alter(Cancel(job=q.key("a")))
    q.clock.advance(2 * SECOND)
    assert (await q.claim(worker="w2") == []) if repaired_by == "claim" else await q.tick()
    assert await q.state("a") is State.CANCELLED
    assert await q.store.extend([ref(lease)], lease_ms=LEASE) == ["lost"]


async def test_a_request_to_cancel_ends_with_the_life_it_was_for(q: Desk) -> None:
    await q.put("a")
    lease = await q.take()
    await q.alter(Cancel(job=q.key("a")))
    await q.settle(release(lease))
    await q.put("a")
    again = await q.take()
    assert (again.life, again.cancel_asked) == (1, False)
    assert await q.store.extend([ref(again)], lease_ms=LEASE) == ["held"]
    await q.settle(retry(again))
    assert await q.state("a") is State.WAITING


async def test_the_token_of_a_cancelled_life_is_worth_nothing_in_the_next(q: Desk) -> None:
    await q.put("a")
    old = await q.take(lease_ms=SECOND)
    await q.alter(Cancel(job=q.key("a")))
    q.clock.advance(2 * SECOND)
    await q.tick()
    await q.put("a")
    new = await q.take()
    assert len((await q.exchange(complete(old))).stale) == 1
    await q.settle(complete(new))


async def test_cancelling_is_seen_through_every_handle(q_twice: tuple[Desk, Desk]) -> None:
    first, second = q_twice
    await first.put("a", "b")
    lease = await second.take()
    assert await first.alter(Cancel(job=first.key("a")))
    assert await first.alter(Cancel(job=first.key("b")))
    assert await second.store.extend([ref(lease)], lease_ms=LEASE) == ["cancel"]
    assert await second.claim() == []


async def test_commands_are_carried_out_in_order_and_answered_in_order(q: Desk) -> None:
    beside = q.beside("other")
    await q.put("a")
    await beside.put("a")
    commands: list[AnyCommand] = [
        Cancel(job=beside.key("a")),
        Remove(job=beside.key("a")),
        Cancel(job=q.key("x")),
        Cancel(job=q.key("a")),
    ]
    assert await q.store.alter(commands) == ["done", "done", "missing", "done"]
    assert await beside.states("a") == [None]
    assert await q.states("a") == ["cancelled"]
    assert await q.store.alter([]) == []
