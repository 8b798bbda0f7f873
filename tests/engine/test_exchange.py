"""The exchange: repeated under the same name when the store does not answer."""

from __future__ import annotations

import asyncio
import logging
from itertools import count

import pytest

from jobq.core.records.states import State

from .kit import Bench, Gate, Proxy, eventually


async def test_lost_replies_cost_neither_a_job_nor_a_run_nor_a_slot(
    bench: Bench, line: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    ran: list[int] = []
    gate = Gate()
    numbers = count()

    def lose(method: str) -> bool:
        return method == "settle" and next(numbers) % 2 == 0

    line.lose = lose

    @bench.task
    async def work(n: int) -> None:
        ran.append(n)

    @bench.task
    async def hold(n: int) -> None:
        await gate()

    await bench.add_many("work", 200)
    async with bench.through(line).worker(concurrency=20):
        await bench.all_in(State.COMPLETED, 200)
        await bench.add_many("hold", 30)
        await eventually(lambda: gate.inside == 20)  # every slot is still there
        gate.opened.set()
        await bench.all_in(State.COMPLETED, 230)
    assert sorted(ran) == list(range(200))
    kinds = await bench.kinds()
    assert (kinds["started"], kinds["completed"], kinds["stalled"]) == (230, 230, 0)
    assert "lost its lease" not in caplog.text


async def test_a_repeated_exchange_has_the_same_name_and_the_same_arguments(
    bench: Bench, line: Proxy
) -> None:
    losses = iter([True, True, True])
    line.lose = lambda method: method == "settle" and next(losses, False)

    @bench.task
    async def work() -> None: ...

    id = await bench.add("work")
    async with bench.through(line).worker():
        await bench.ended(id)
    first, *repeated = line.of("settle")[:4]
    assert all(call == first for call in repeated)
    assert line.of("settle")[4][1]["call"] != first[1]["call"]


async def test_an_exchange_that_hangs_is_repeated(bench: Bench, line: Proxy) -> None:
    hung = asyncio.Event()

    async def after(method: str, answer: object) -> None:
        if method == "settle" and not hung.is_set():
            hung.set()
            await asyncio.Event().wait()

    line.after = after

    @bench.task
    async def work() -> None: ...

    id = await bench.add("work")
    async with bench.through(line).worker(settings={"exchange_timeout_ms": 50}):
        record = await bench.ended(id)
    assert (record.attempt, record.stalls) == (1, 0)


async def test_what_ends_during_an_outage_is_settled_after_it(
    bench: Bench, line: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate()

    @bench.task
    async def work(n: int) -> int:
        await gate()
        return n

    caplog.set_level(logging.INFO, "jobq")
    ids = await bench.add_many("work", 10)
    async with bench.through(line).worker(concurrency=10):
        await eventually(lambda: gate.inside == 10)
        line.down = True
        gate.opened.set()
        await eventually(lambda: line.refused >= 5)
        assert await bench.count(State.ACTIVE) == 10
        line.down = False
        await bench.all_in(State.COMPLETED, 10)
        late = await bench.add("work", 99)
        assert (await bench.ended(late)).state is State.COMPLETED
    assert {(await bench.get(id)).attempt for id in ids} == {1}
    logged = [r.message for r in caplog.records if "exchange with" in r.message]
    assert len(logged) == 2, "one line when it begins, one when it is over"
    assert "works again" in logged[1]
