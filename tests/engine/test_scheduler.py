"""Each time of a schedule fires once, and a broken schedule does not block others."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from jobq.core.records.queues import QueueConfig, ScheduleSpec
from jobq.core.records.states import State
from jobq.core.rules.cron import first_time
from jobq.engine.identity import WorkerSettings
from jobq.engine.scheduler import Scheduler, fire_due, put_planned
from jobq.engine.upkeep import Leader
from jobq.errors import StoreUnavailable, Unauthenticated
from jobq.stores import open_store
from jobq.stores.base import Store

from .kit import Bench, Proxy

SECOND = 1000


class Time:
    """A clock that the test moves."""

    now_ms = 1_770_000_000_000

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
async def store(url: str, time: Time) -> Store:  # type: ignore[misc]
    async with open_store(url, clock=time) as handle:
        yield handle


def every(bench: Bench, id: str, ms: int = SECOND, **fields: Any) -> ScheduleSpec:
    return ScheduleSpec(
        queue=bench.qname, id=id, template=bench.spec("work", id=id), every_ms=ms, **fields
    )


async def test_each_time_fires_once_among_many_schedulers(
    bench: Bench, store: Store, url: str, time: Time
) -> None:
    await put_planned(store, [every(bench, f"s{n}", catch_up="all") for n in range(5)], time())
    others = [open_store(url, clock=time) for _ in range(3)]
    for other in others:
        await other.migrate()
    try:
        for _ in range(4):
            time.now_ms += 3 * SECOND
            await asyncio.gather(*(fire_due(each, time()) for each in (store, *others)))
    finally:
        for other in others:
            await other.aclose()
    assert await bench.count(State.WAITING) == 5 * 12
    assert {record.fired for record in await store.list_schedules(bench.qname)} == {12}


async def test_only_the_leader_fires(bench: Bench, store: Store, time: Time) -> None:
    await put_planned(store, [every(bench, "s")], time())
    time.now_ms += SECOND
    settings = WorkerSettings()
    first, second = (
        Scheduler(store, Leader(store, "upkeep", who=who, ttl_ms=60_000), settings, clock=time)
        for who in "ab"
    )
    assert await first.tick() == 0.0  # there may be more
    time.now_ms += SECOND
    assert await second.tick() == settings.schedule_ms / 1000
    assert await bench.count(State.WAITING) == 1


async def test_a_clock_that_is_behind_holds_up_nothing(
    bench: Bench, store: Store, time: Time
) -> None:
    await put_planned(store, [every(bench, "s")], time())
    time.now_ms += SECOND
    assert await fire_due(store, time() - 10 * SECOND) == 1
    assert await bench.count(State.WAITING) == 1


async def test_a_refused_job_costs_its_time_and_nobody_elses(
    bench: Bench, store: Store, time: Time, caplog: pytest.LogCaptureFixture
) -> None:
    good = Bench(store)
    await store.declare(bench.qname, QueueConfig(mode="keyed"))
    await put_planned(store, [every(bench, "bad"), every(good, "good")], time())
    time.now_ms += SECOND
    assert await fire_due(store, time()) == 2
    assert "schedule bad of queue work: the store refused its job" in caplog.text
    assert await good.count(State.WAITING) == 1
    assert await fire_due(store, time()) == 0


async def test_a_schedule_that_cannot_be_worked_out_holds_up_no_other(
    bench: Bench,
    store: Store,
    time: Time,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken = ScheduleSpec(
        queue=bench.qname,
        id="broken",
        template=bench.spec("work", id="b"),
        cron="from a later version",
    )
    with monkeypatch.context() as later:  # the check of a version that knows this expression
        later.setattr("jobq.stores.relational.store.check_schedule", lambda spec, next_ms: spec)
        await store.put_schedule(broken, next_ms=time() + SECOND)
    await put_planned(store, [every(bench, "good")], time())
    time.now_ms += SECOND
    assert await fire_due(store, time()) == 1
    assert "schedule broken of queue work cannot be planned by this version" in caplog.text
    assert await bench.count(State.WAITING) == 1


async def test_a_store_that_is_away_is_tried_again_and_each_time_still_fires_once(
    bench: Bench, store: Store, line: Proxy, time: Time
) -> None:
    await put_planned(store, [every(bench, "s")], time())
    time.now_ms += SECOND
    line.lose = lambda method: method == "fire"
    with pytest.raises(StoreUnavailable):
        await fire_due(line, time())
    line.lose = lambda method: False
    await fire_due(line, time())
    assert await bench.count(State.WAITING) == 1


async def test_a_token_that_is_replaced_late_costs_no_time(
    bench: Bench, store: Store, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put_planned(store, [every(bench, "s")], time())
    time.now_ms += SECOND
    fire = store.fire

    async def denied(_: object) -> list[bool]:
        monkeypatch.setattr(store, "fire", fire)  # the token is replaced before the next call
        raise Unauthenticated("the token has expired")

    monkeypatch.setattr(store, "fire", denied)
    with pytest.raises(Unauthenticated):
        await fire_due(store, time())
    await fire_due(store, time())
    assert await bench.count(State.WAITING) == 1


async def test_long_catching_up_goes_in_bounded_calls(
    bench: Bench, store: Store, line: Proxy, time: Time
) -> None:
    await put_planned(store, [every(bench, f"s{n}", catch_up="all") for n in range(12)], time())
    time.now_ms += 250 * SECOND
    while await fire_due(line, time()):
        pass
    assert max(len(args[0]) for args, _ in line.of("fire")) <= 500
    assert await bench.count(State.WAITING) == 12 * 250


async def test_storing_again_what_is_stored_changes_nothing(
    bench: Bench, store: Store, time: Time
) -> None:
    spec = every(bench, "s")
    await put_planned(store, [spec], time())
    time.now_ms += 500
    await put_planned(store, [spec], time())
    (record,) = await store.list_schedules(bench.qname)
    assert record.next_ms == first_time(spec, time() - 500)
