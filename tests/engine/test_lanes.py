"""Two exchanges in flight, for a store in another process."""

from __future__ import annotations

import asyncio
from itertools import count

import pytest

from jobq.core.records.jobs import lane_of
from jobq.core.records.states import State
from jobq.stores.base import Store

from .kit import Bench, Proxy, eventually


@pytest.fixture
def line(store: Store) -> Proxy:
    """A store that takes two exchanges at a time."""
    proxy = Proxy(store)
    proxy.lanes = 2
    return proxy


@pytest.fixture
async def jobs(bench: Bench) -> Bench:
    """A backlog of 400 jobs that return at once."""

    @bench.task
    async def work(n: int) -> int:
        return n

    await bench.add_many("work", 400)
    return bench


async def test_a_store_that_works_by_itself_is_given_two_exchanges_at_a_time(
    jobs: Bench, line: Proxy
) -> None:
    in_flight: set[int] = set()
    together = 0
    met = asyncio.Event()

    async def slowly(method: str, args: tuple[object, ...]) -> None:
        nonlocal together
        if method == "settle" and args[0]:
            me = len(line.calls)
            in_flight.add(me)
            together = max(together, len(in_flight))
            if together > 1:
                met.set()
            async with asyncio.timeout(5):
                await met.wait()
            in_flight.discard(me)

    line.before = slowly
    async with jobs.through(line).worker(concurrency=64):
        await jobs.all_in(State.COMPLETED, 400)
    assert together == 2
    assert max(len(args[0]) for args, _ in line.of("settle")) <= 64
    assert {lane_of(kwargs["call"]) for _, kwargs in line.of("settle")} == {0, 1}


@pytest.mark.parametrize("concurrency", [48, 128])
async def test_two_lanes_lose_nothing_when_replies_are_lost(
    bench: Bench, line: Proxy, concurrency: int
) -> None:
    ran: list[int] = []
    settles = count(1)
    line.lose = lambda method: method == "settle" and next(settles) % 3 == 0

    @bench.task
    async def work(n: int) -> int:
        ran.append(n)
        if n % 5 == 0:
            await asyncio.sleep(0)
        return n

    await bench.add_many("work", 300)
    async with bench.through(line).worker(concurrency=concurrency):
        await bench.all_in(State.COMPLETED, 300)
    assert sorted(ran) == list(range(300))
    assert {lane_of(kwargs["call"]) for _, kwargs in line.of("settle")} == {0, 1}


async def test_a_worker_stopped_with_two_exchanges_in_flight_settles_both(
    jobs: Bench, line: Proxy
) -> None:
    both, held = asyncio.Event(), 0
    opened = asyncio.Event()

    async def hold(method: str, args: tuple[object, ...]) -> None:
        nonlocal held
        if method == "settle" and args[0] and not opened.is_set():
            held += 1
            if held == 2:
                both.set()
            await opened.wait()

    line.before = hold
    worker = jobs.through(line).worker(concurrency=64)
    async with worker:
        async with asyncio.timeout(5):
            await both.wait()
        stopping = asyncio.ensure_future(worker.stop())
        opened.set()
        await stopping
    assert await jobs.count(State.ACTIVE) == 0
    completed, waiting = await jobs.count(State.COMPLETED), await jobs.count(State.WAITING)
    assert (completed >= 64, completed + waiting) == (True, 400)


async def test_a_worker_that_finds_nothing_sleeps_while_its_other_lane_waits_for_an_answer(
    jobs: Bench, line: Proxy
) -> None:
    opened = asyncio.Event()

    async def hold(method: str, args: tuple[object, ...]) -> None:
        if method == "settle" and lane_of(line.calls[-1][2]["call"]) == 1:
            await opened.wait()

    line.before = hold
    async with jobs.through(line).worker(concurrency=64):
        await eventually(lambda: line.of("sleep"))
        late = await jobs.add("work", 400)
        assert (await jobs.ended(late)).state is State.COMPLETED
        opened.set()
        await jobs.all_in(State.COMPLETED, 401)
