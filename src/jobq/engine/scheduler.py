"""Makes the jobs of schedules whose time has come. Any number may do this: `fire` compares and sets, so each time fires once."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

import msgspec

from jobq.core.cron import first_time, plan
from jobq.core.queues import Fire, ScheduleRecord, ScheduleSpec
from jobq.engine.leader import Leader
from jobq.engine.service import Service
from jobq.engine.settings import WorkerSettings
from jobq.errors import JobqError, StoreUnavailable
from jobq.stores.base import Clock, Store

log = logging.getLogger("jobq")

_DUE = 100
_FIRES = 500  # per call: a schedule that catches up on everything must not hold up other writers


class Scheduler(Service):
    """Due schedules → `core.cron.plan` → `store.fire`, by one worker of the store."""

    name = "schedules"

    def __init__(
        self, store: Store, leader: Leader, settings: WorkerSettings, *, clock: Clock
    ) -> None:
        """`clock` only tells catch-up how late it is; what is due is for the store to say."""
        super().__init__()
        self._store = store
        self._leader = leader
        self._settings = settings
        self._clock = clock

    async def tick(self) -> float:
        """One bounded pass over what is due; one that found something is followed by another at once."""
        if await self._leader.leads() and await fire_due(self._store, self._clock()):
            return 0.0
        return self._settings.schedule_ms / 1000


async def put_planned(store: Store, specs: Iterable[ScheduleSpec], now_ms: int) -> None:
    """Store the schedules that tasks were declared with. All workers do so, and all but the first change nothing."""
    for spec in specs:
        await store.put_schedule(spec, next_ms=first_time(spec, now_ms))


async def fire_due(store: Store, now_ms: int) -> int:
    """Make the jobs of what is due, as far as one pass goes; how many times were dealt with."""
    due = await store.list_schedules(due=True, limit=_DUE)
    fires = [fire for record in due for fire in _planned(record, now_ms)]
    for start in range(0, len(fires), _FIRES):
        await _fire(store, fires[start : start + _FIRES])
    return len(fires)


def _planned(record: ScheduleRecord, now_ms: int) -> list[Fire]:
    """What is due by the store's clock is due, however far this machine's is behind."""
    try:
        return plan(record, max(now_ms, record.next_ms or 0))
    except (
        Exception
    ):  # a newer version may know more than this one: nobody else's schedule waits for it
        log.exception(
            "schedule %s of queue %s cannot be worked out here",
            record.spec.id,
            record.spec.queue.queue,
        )
        return []


async def _fire(store: Store, fires: Sequence[Fire]) -> None:
    """All at once. If the store refuses one of the jobs (its queue has become keyed, say), one by one, and that time is
    left out: tried again and again it would never be another, and all other schedules would wait."""
    try:
        await store.fire(fires)
        return
    except StoreUnavailable:
        raise
    except JobqError as error:
        if len(fires) == 1:
            fire = fires[0]
            log.error(
                "schedule %s of queue %s: its job was refused: %s",
                fire.schedule,
                fire.queue.queue,
                error,
            )
            await store.fire([msgspec.structs.replace(fire, skipped=True)])
            return
    for fire in fires:
        await _fire(store, [fire])
