"""What a call does in a store with many queues does not depend on how many there are."""

from __future__ import annotations

from types import ModuleType

import pytest

from bench.growth.compared import opened, spec
from jobq.core.records.jobs import JobSpec, QueueName
from jobq.core.records.queues import ScheduleSpec
from jobq.core.records.states import State
from jobq.stores.base import Store
from jobq.stores.sqlite import upkeep as sqlite_upkeep
from jobq.stores.valkey import upkeep as valkey_upkeep
from jobq.stores.valkey.calls import Calls

QUEUES = [QueueName("default", f"queue {n}") for n in range(200)]


class Clock:
    def __init__(self) -> None:
        self.now_ms = 1_800_000_000_000

    def __call__(self) -> int:
        return self.now_ms


async def promoted(store: Store) -> int:
    return sum([(await store.count(queue))[State.WAITING] for queue in QUEUES])


@pytest.mark.parametrize(("kind", "module"), [("sqlite", sqlite_upkeep), ("valkey", valkey_upkeep)])
async def test_a_tick_visits_some_queues_and_the_next_ones_the_others(
    kind: str, module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "QUEUES", 20)
    clock = Clock()
    async with opened(kind, clock=clock) as (_, store):
        await store.put(
            [
                JobSpec(queue=queue, id="a", name="noop", payload=b"[[],{}]", delay_ms=1)
                for queue in QUEUES
            ]
        )
        clock.now_ms += 1
        assert await store.tick() == 500
        assert 0 < await promoted(store) <= 40  # SSCAN returns a few more than it was asked for
        ticks = 1
        while await store.tick() == 500:
            ticks += 1
        assert 5 <= ticks <= 20
        assert await promoted(store) == len(QUEUES)
        assert await store.tick() in (0, 500)  # a new round


async def test_a_scheduler_asks_only_queues_that_may_have_a_due_schedule(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []
    original = Calls.fcall

    async def fcall(self: Calls, name: str, key: str, *args: object, **options: object) -> object:
        asked.append(name)
        return await original(self, name, key, *args, **options)  # type: ignore[arg-type]

    clock = Clock()
    async with opened("valkey", clock=clock) as (_, store):
        await store.put([spec(queue, "a") for queue in QUEUES])
        far, soon = (
            ScheduleSpec(queue=queue, id="s", template=spec(queue, "x"), every_ms=60_000)
            for queue in QUEUES[:2]
        )
        await store.put_schedule(far, next_ms=clock.now_ms + 3_600_000)
        await store.put_schedule(soon, next_ms=clock.now_ms + 1_000)
        assert await store.list_schedules(due=True) == []
        monkeypatch.setattr(Calls, "fcall", fcall)
        assert await store.list_schedules(due=True) == []
        assert asked == []
        clock.now_ms += 1_000
        (due,) = await store.list_schedules(due=True)
        assert due.spec == soon
        assert asked == ["schedules"]
