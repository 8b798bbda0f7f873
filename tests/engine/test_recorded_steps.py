"""Steps of a handler: confirmed by the store before the handler goes on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from jobq import current_job
from jobq.core.records.states import State
from jobq.core.rules.waits import unpack_step
from jobq.errors import LeaseLost

from .kit import Bench, Proxy, eventually, soon
from .test_late import Frozen


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Frozen:
    return Frozen(monkeypatch)


async def test_a_step_whose_confirmation_is_lost_is_recorded_again_and_executed_once(
    bench: Bench, line: Proxy
) -> None:
    calls: list[str] = []
    lost = 0

    def lose(method: str) -> bool:
        nonlocal lost
        lost += method == "note"
        return method == "note" and lost <= 2

    async def charge() -> str:
        calls.append("charge")
        return "receipt"

    @bench.task
    async def order() -> str:
        return await current_job().step("charge", charge)

    line.lose = lose
    id = await bench.add("order")
    async with bench.through(line).worker():
        record = await bench.ended(id)
    assert (record.state, record.result, calls) == (State.COMPLETED, b'"receipt"', ["charge"])
    assert len(line.of("note")) == 3
    assert [(name, unpack_step(data).result) for name, data in record.steps] == [
        ("charge", b'"receipt"')
    ]


async def test_a_handler_does_not_go_on_while_the_store_is_unavailable(
    bench: Bench, line: Proxy
) -> None:
    went_on = asyncio.Event()

    async def charge() -> None:
        line.down = True

    @bench.task
    async def order() -> None:
        await current_job().step("charge", charge)
        went_on.set()

    id = await bench.add("order")
    async with bench.through(line).worker():
        await eventually(lambda: line.refused > 1, "calls during the outage")
        assert not went_on.is_set()
        assert (await bench.get(id)).steps == ()
        line.down = False
        await soon(went_on)
        record = await bench.ended(id)
    assert [name for name, _ in record.steps] == ["charge"]


async def test_what_a_handler_says_at_once_is_sent_in_one_note(bench: Bench, line: Proxy) -> None:
    @bench.task
    async def order() -> None:
        job = current_job()
        await asyncio.gather(
            job.log("one"),
            job.progress(1),
            job.save("x"),
            job.step("a", lambda: 1),
            job.log("two"),
            job.progress(2),
            job.save("y"),
            job.step("b", lambda: 2),
        )

    id = await bench.add("order")
    async with bench.through(line).worker():
        record = await bench.ended(id)
    ((notes,), _), *more = line.of("note")
    assert (len(notes), more) == (1, [])
    assert (notes[0].lines, notes[0].progress, notes[0].saved) == (("one", "two"), b"2", b'"y"')
    assert (record.progress, record.saved) == (b"2", b'"y"')
    assert [name for name, _ in record.steps] == ["a", "b"]


@pytest.mark.parametrize("kind", ["coroutine", "function"])
async def test_a_worker_that_was_frozen_for_a_lease_starts_no_step(
    bench: Bench, clock: Frozen, kind: str
) -> None:
    calls: list[Any] = []
    raised: list[BaseException] = []

    async def coroutine() -> None:
        await current_job().step("before", lambda: calls.append("before"))
        clock.frozen = 100.0
        try:
            await current_job().step("after", lambda: calls.append("after"))
        except LeaseLost as error:
            raised.append(error)
            raise

    def function() -> None:
        current_job().sync.step("before", lambda: calls.append("before"))
        clock.frozen = 100.0
        try:
            current_job().sync.step("after", lambda: calls.append("after"))
        except LeaseLost as error:
            raised.append(error)
            raise

    bench.task(coroutine)
    bench.task(function)
    id = await bench.add(kind)
    async with bench.worker(lease=60) as worker:
        await eventually(lambda: raised and worker._stations[0].runner.open == 0)
        assert (await bench.get(id)).state is State.ACTIVE  # until its lease has expired
    assert calls == ["before"]
    assert "step 'after' of job" in str(raised[0])
    assert "was not started: the job's lease has ended" in str(raised[0])
