"""The loops beside the fetcher survive outages, and only one worker does the upkeep."""

from __future__ import annotations

import asyncio
import logging

import pytest

from jobq.core.records.jobs import JobSpec
from jobq.core.records.queues import ScheduleSpec
from jobq.core.records.states import State
from jobq.engine.identity import WorkerSettings
from jobq.engine.scheduler import Scheduler
from jobq.engine.service import Outage, Service
from jobq.engine.upkeep import Leader, Ticker
from jobq.errors import StoreUnavailable
from jobq.stores import open_store
from jobq.stores.base import Store

from .kit import Bench, Proxy, eventually, steal


class Flaky(Service):
    """A service that fails a given number of times."""

    name = "flaky"

    def __init__(self, failures: int) -> None:
        super().__init__()
        self.failures = failures
        self.passes = 0

    async def tick(self) -> float:
        if self.failures:
            self.failures -= 1
            raise StoreUnavailable("unavailable")
        self.passes += 1
        return 0.001


async def test_a_service_goes_on_after_an_outage_and_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "jobq")
    service = Flaky(3)
    running = asyncio.ensure_future(service.run())
    await eventually(lambda: service.passes > 5)
    service.stop()
    await asyncio.wait_for(running, 5)
    assert [r.levelname for r in caplog.records if "flaky" in r.message] == ["WARNING", "INFO"]


async def test_a_service_at_rest_stops_at_once() -> None:
    class Restful(Service):
        async def tick(self) -> float:
            return 3600

    service = Restful()
    running = asyncio.ensure_future(service.run())
    await asyncio.sleep(0)
    service.stop()
    await asyncio.wait_for(running, 5)


def test_the_waits_of_an_outage_grow_to_their_cap_with_half_of_it_chance() -> None:
    outage = Outage("x", base=0.1, cap=2)
    waits = [outage.failed(StoreUnavailable("unavailable")) for _ in range(2000)]
    assert 0.05 <= waits[0] <= 0.1
    assert all(1 <= wait <= 2 for wait in waits[10:])
    outage.over()
    assert outage.failed(StoreUnavailable("unavailable")) <= 0.1


async def test_only_one_of_many_workers_does_the_upkeep(store: Store, line: Proxy) -> None:
    settings = WorkerSettings()
    tickers = [
        Ticker(line, Leader(line, "upkeep", who=f"w{n}", ttl_ms=60_000), settings)  # type: ignore[arg-type]
        for n in range(10)
    ]
    for _ in range(3):
        for ticker in tickers:
            await ticker.tick()
    assert len(line.of("tick")) == 3
    assert len(line.of("lead")) == 10, "the answer is remembered"


async def test_upkeep_brings_back_what_died_in_a_queue_nobody_claims_from(url: str) -> None:
    now = [1_700_000_000_000]
    async with open_store(url, clock=lambda: now[0]) as store:
        bench = Bench(store)
        id = await bench.add("work")
        await steal(store, bench.qname)
        now[0] += 3_600_000
        await Ticker(store, Leader(store, "upkeep", who="w", ttl_ms=1000), WorkerSettings()).tick()
        record = await bench.get(id)
    assert (record.state, record.stalls) == (State.WAITING, 1)


async def test_a_due_schedule_fires_once_however_many_workers_look(url: str) -> None:
    now = [1_700_000_000_000]
    async with open_store(url, clock=lambda: now[0]) as store:
        bench = Bench(store)
        template = JobSpec(queue=bench.qname, id="minutely", name="work", payload=b"[[],{}]")
        spec = ScheduleSpec(queue=bench.qname, id="minutely", template=template, every_ms=60_000)
        await store.put_schedule(spec, next_ms=now[0] + 60_000)
        schedulers = [
            Scheduler(
                store,
                Leader(store, f"leadership {n}", who=f"w{n}", ttl_ms=1000),
                WorkerSettings(),
                clock=lambda: now[0],
            )
            for n in range(3)
        ]
        await asyncio.gather(*(scheduler.tick() for scheduler in schedulers))
        assert await bench.count(State.WAITING) == 0
        now[0] += 60_000
        await asyncio.gather(*(scheduler.tick() for scheduler in schedulers))
        assert await bench.count(State.WAITING) == 1
