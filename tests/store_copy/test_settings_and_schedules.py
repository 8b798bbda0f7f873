"""The settings and schedules of a queue move with its jobs."""

from __future__ import annotations

from typing import Any

import pytest

from jobq.core.records.queues import (
    Fire,
    Limits,
    QueueConfig,
    RetentionData,
    ScheduleRecord,
    ScheduleSpec,
    Tokens,
    Window,
)
from jobq.core.rules import copies
from jobq.errors import ConfigError
from jobq.stores.base import Store
from jobq_conformance.kit import DAY, HOUR, MINUTE, SECOND, Desk, complete
from tests.store_copy.conftest import Copying

CONFIG = QueueConfig(
    mode="keyed",
    limits=Limits(limit=9, rate=Window(limit=5, per_ms=SECOND)),
    limits_version=3,
    retention=RetentionData(completed_ms=HOUR, failed_ms=None, count=17),
    dead_letters="graveyard",
    max_stalls={"charge": 2},
    event_meta=("trace",),
)


def schedule(desk: Desk, id: str = "nightly", **options: Any) -> ScheduleSpec:
    times = options or {"every_ms": HOUR}
    return ScheduleSpec(queue=desk.queue, id=id, template=desk.spec("template"), **times)


async def schedules(desk: Desk) -> list[ScheduleRecord]:
    return await desk.store.list_schedules(desk.queue)


async def record_of(desk: Desk) -> Any:
    return next(r for r in await desk.store.queues(desk.queue.tenant) if r.queue == desk.queue)


async def test_settings_move(both: Copying) -> None:
    await both.here.store.declare(both.here.queue, CONFIG)
    await both.here.store.set_limits(both.here.queue, Limits(limit=4))
    own = Limits(key_limit=3, key_rate=Tokens(capacity=2, refill=0.5))
    await both.here.store.set_limits(both.here.queue, own, key="acme")
    await both.here.store.hold(both.here.queue, DAY, "slow")
    await both.here.store.pause(both.here.queue)
    await both.copy()
    assert await record_of(both.there) == await record_of(both.here)
    held = await both.there.store.holds(both.there.queue)
    assert held.keys == {"slow": both.clock() + DAY}
    await both.copy()  # again
    assert await record_of(both.there) == await record_of(both.here)


async def test_other_limits_in_the_target_are_refused_before_any_job_moves(both: Copying) -> None:
    await both.here.store.declare(both.here.queue, QueueConfig(limits=Limits(limit=1)))
    await both.there.store.declare(both.there.queue, QueueConfig(limits=Limits(limit=2)))
    await both.here.put("a")
    with pytest.raises(ConfigError, match="limits_version"):
        await both.copy()
    assert await both.here.claim_ids() == ["a"]


async def test_another_mode_in_the_target_is_refused_before_any_job_moves(both: Copying) -> None:
    await both.there.put("plain")
    await both.here.put("a", key="k")
    with pytest.raises(ConfigError, match="keyed"):
        await both.copy()
    assert await both.here.claim_ids() == ["a"]


async def test_a_schedule_moves_with_its_next_time(both: Copying) -> None:
    next_ms = both.clock() + MINUTE
    await both.here.store.put_schedule(schedule(both.here), next_ms=next_ms)
    await both.here.store.put_schedule(schedule(both.here, "off"), next_ms=next_ms)
    await both.here.store.pause_schedule(both.here.queue, "off", paused=True)
    report = await both.copy()
    assert (report.schedules, report.complete) == (2, True)
    moved = {r.spec.id: r for r in await schedules(both.there)}
    assert {id: (r.next_ms, r.paused) for id, r in moved.items()} == {
        "nightly": (next_ms, False),
        "off": (next_ms, True),
    }
    assert moved["nightly"].spec == schedule(both.here)
    assert await schedules(both.here) == []


async def test_a_schedule_fires_as_often_as_it_may_in_both_stores_together(both: Copying) -> None:
    spec, at = schedule(both.here, every_ms=HOUR, limit=3), both.clock()
    await both.here.store.put_schedule(spec, next_ms=at)
    fire = Fire(queue=both.here.queue, schedule="nightly", at_ms=at, next_ms=at + HOUR)
    assert await both.here.store.fire([fire]) == [True]
    await both.copy()
    (moved,) = await schedules(both.there)
    assert (moved.spec.limit, moved.next_ms) == (2, at + HOUR)
    assert await both.there.claim_ids() == [f"nightly@{at}"]


async def test_a_schedule_that_waits_for_its_job_is_started_by_it_in_the_target(
    both: Copying,
) -> None:
    spec, at = schedule(both.here, every_ms=HOUR, after_complete=True), both.clock()
    await both.here.store.put_schedule(spec, next_ms=at)
    fire = Fire(queue=both.here.queue, schedule="nightly", at_ms=at, next_ms=None)
    assert await both.here.store.fire([fire]) == [True]
    await both.copy()
    await both.there.settle(complete(await both.there.take()))
    (moved,) = await schedules(both.there)
    assert moved.next_ms == both.clock() + HOUR


class Dies(Exception):
    """The copy ends here, as if it had been killed."""


CALLS = ("put_schedule", "pause_schedule", "drop_schedule")


class Frail:
    """A store that dies before or after its n-th call that changes a schedule."""

    def __init__(self, store: Store, calls: list[int], before: bool) -> None:
        self._store, self._calls, self._before = store, calls, before

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        if name not in CALLS:
            return method

        async def call(*args: Any, **options: Any) -> Any:
            self._calls[0] -= 1
            if self._before and self._calls[0] == 0:
                raise Dies
            result = await method(*args, **options)
            if self._calls[0] == 0:
                raise Dies
            return result

        return call


@pytest.mark.parametrize("paused", [False, True], ids=["running", "paused"])
async def test_a_copy_that_dies_at_any_step_of_a_schedule_is_continued(
    both: Copying, paused: bool
) -> None:
    steps = 0
    for before in (True, False):
        for n in range(1, 12):
            here, there = both.here.beside(f"{n}{before}"), both.there.beside(f"{n}{before}")
            next_ms = both.clock() + MINUTE
            await here.store.put_schedule(schedule(here), next_ms=next_ms)
            if paused:
                await here.store.pause_schedule(here.queue, "nightly", paused=True)
            pair = Copying(here.store, there.store, both.clock)
            pair.here, pair.there = here, there
            calls = [n]
            plain = here.store, there.store
            here.store = Frail(plain[0], calls, before)
            there.store = Frail(plain[1], calls, before)
            died = False
            try:
                await pair.copy()
            except Dies:
                died = True
            here.store, there.store = plain
            ready = [
                r
                for desk in (here, there)
                for r in await schedules(desk)
                if r.next_ms is not None and not r.paused
            ]
            assert len(ready) <= 1, f"died at step {n}: the schedule fires in two stores"
            await pair.copy()
            (moved,) = await schedules(there)
            assert (moved.next_ms, moved.paused) == (next_ms, paused), f"died at step {n}"
            assert copies.parked(moved) is None
            assert await schedules(here) == []
            steps += died
    assert steps >= 10
