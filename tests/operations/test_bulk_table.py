"""Every row of the table of bulk operations works, and every face that lists them offers it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from jobq.core.records.commands import APPLIES
from jobq.core.records.criteria import Criteria
from jobq.core.records.jobs import QueueName
from jobq.core.records.states import State
from jobq.operations.bulk import OPERATIONS, BulkChange
from jobq.stores import open_store
from jobq.stores.base import Store
from jobq.web.data.actions import ACTIONS
from jobq_conformance.kit import Desk, FakeClock, complete, fail, retry

KINDS = sorted(OPERATIONS)


@pytest.fixture
async def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def store(clock: FakeClock) -> AsyncIterator[Store]:
    async with open_store("memory://operations", clock=clock) as opened:
        yield opened


@pytest.fixture
def q(store: Store, clock: FakeClock) -> Desk:
    return Desk(store, QueueName("default", "bulk"), clock)


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_is_named_after_its_command_and_means_states_that_it_applies_to(kind: str) -> None:
    row = OPERATIONS[kind]
    assert row.command.__struct_config__.tag == kind
    assert set(row.states) <= APPLIES[kind].states
    assert "{n}" in row.question


@pytest.mark.parametrize("kind", KINDS)
def test_the_dashboard_has_an_action_for_every_row(kind: str) -> None:
    action = ACTIONS[f"jobs.{kind}"]
    assert action.bulk
    assert action.door.needs
    assert OPERATIONS[kind].about in (action.run.__doc__ or "")


async def bring(q: Desk, id: str, state: State) -> None:
    """A job in that state."""
    delay_ms = 1_000_000 if state is State.DELAYED else 0
    await q.put_one(id, delay_ms=delay_ms)
    if state in (State.WAITING, State.DELAYED):
        return
    lease = await q.take()
    await q.settle(complete(lease) if state is State.COMPLETED else fail(lease))


@pytest.mark.parametrize("kind", KINDS)
async def test_an_operation_changes_each_job_once_and_is_recorded(q: Desk, kind: str) -> None:
    state = next(
        each
        for each in (State.FAILED, State.WAITING, State.DELAYED)
        if each in OPERATIONS[kind].states
    )
    for n in range(3):
        await bring(q, f"{n}", state)
    wanted = Criteria(states=(state,))
    before = len(await q.events())
    first = BulkChange(q.store, q.queue, wanted, kind, actor="ann", now_ms=q.clock(), max_jobs=2)
    done = await first.run()
    rest = BulkChange(
        q.store, q.queue, wanted, kind, actor="ann", now_ms=q.clock(), cursor=done.cursor
    )
    assert (done.changed, (await rest.run()).changed) == (2, 1)
    assert {event.actor for event in (await q.events())[before:]} == {"ann"}


async def test_a_job_that_was_promoted_and_is_delayed_again_is_left_alone(q: Desk) -> None:
    for n in range(3):
        await bring(q, f"{n}", State.DELAYED)
    wanted = Criteria(states=(State.DELAYED,))
    first = BulkChange(
        q.store, q.queue, wanted, "promote", actor=None, now_ms=q.clock(), max_jobs=1
    )
    done = await first.run()
    q.clock.advance(1)
    lease = await q.take()
    await q.settle(retry(lease, 1_000_000))
    rest = BulkChange(
        q.store, q.queue, wanted, "promote", actor=None, now_ms=q.clock(), cursor=done.cursor
    )
    assert (done.changed, (await rest.run()).changed) == (1, 2)
