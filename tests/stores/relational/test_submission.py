"""A large flow is submitted by several transactions. Others write between them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from uuid import uuid4

import pytest

from jobq.core.records.commands import Remove
from jobq.core.records.jobs import Edge, JobKey, JobSpec, QueueName
from jobq.core.records.states import State
from jobq.errors import InvalidJob
from jobq.stores import open_store
from jobq.stores.relational import staging, submission
from jobq.stores.relational.store import RelationalStore
from jobq.stores.relational.submission import Flow

QUEUE = QueueName("t", "work")


def spec(id: str, after: tuple[Edge, ...] = ()) -> JobSpec:
    return JobSpec(queue=QUEUE, id=id, name="task", payload=b"[[],{}]", after=after)


SPECS = [*(spec(f"c{n}") for n in range(10)), spec("p", (Edge(JobKey(QUEUE, "x")),))]


@pytest.fixture
async def handles(
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[tuple[RelationalStore, RelationalStore]]:
    """Two handles on a store that needs several steps for ten members."""
    monkeypatch.setattr(staging, "STEP", 4)
    url = f"memory://submission-{uuid4().hex}"
    async with open_store(url) as one, open_store(url) as other:
        assert isinstance(one, RelationalStore)
        assert isinstance(other, RelationalStore)
        yield one, other


def before(
    store: RelationalStore, step: Callable[..., Any], act: Callable[[], Awaitable[object]]
) -> None:
    """Do something once, before the handle takes this step for the first time."""
    todo = [act]

    def between(run: Callable[..., Any]) -> Callable[..., Any]:
        async def stepped(work: Callable[..., Any], *args: object) -> Any:
            if work is step and todo:
                await todo.pop()()
            return await run(work, *args)

        return stepped

    store._read = between(store._read)  # type: ignore[method-assign]
    store._write = between(store._write)  # type: ignore[method-assign]


async def test_a_check_that_fails_does_not_refuse_a_flow_that_another_caller_submitted(
    handles: tuple[RelationalStore, RelationalStore],
) -> None:
    one, other = handles
    await other.put([spec("x")])

    async def act() -> None:
        await other.put(SPECS, flow="f")
        await other.alter([Remove(job=JobKey(QUEUE, "x"))] * 2)

    before(one, submission.missing, act)
    results = await one.put(SPECS, flow="f")
    assert {each.duplicate for each in results} == {True}
    assert (await other.count(QUEUE))[State.WAITING] == 10


async def test_a_flow_that_is_discarded_while_it_is_checked_is_not_reported_as_submitted(
    handles: tuple[RelationalStore, RelationalStore],
) -> None:
    one, other = handles
    await other.put([spec("x")])

    async def act() -> None:
        await other._write(staging.discard, *Flow("t", "f"))  # its first step

    before(one, submission.members_page, act)
    with pytest.raises(InvalidJob, match="submit it again"):
        await one.put(SPECS, flow="f")
    assert {state: n for state, n in (await other.count(QUEUE)).items() if n} == {State.WAITING: 1}


async def test_a_flow_cannot_be_finished_in_part_after_another_caller_was_refused(
    handles: tuple[RelationalStore, RelationalStore],
) -> None:
    one, other = handles
    for each in handles:
        await each.put(SPECS[:2], flow="f", last=False)
    with pytest.raises(InvalidJob, match="does not exist"):
        await one.put(SPECS[-1:], flow="f")
    with pytest.raises(InvalidJob, match="submit it again"):
        await other.put(SPECS[2:4], flow="f")
    assert not any((await other.count(QUEUE)).values())
