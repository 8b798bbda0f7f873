"""Creates the jobs of due schedules.

Several workers may do this at the same time: `store.fire` compares and sets, so each time fires
once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from itertools import compress
from typing import Protocol

from msgspec.structs import replace

from jobq.core.records.jobs import QueueName
from jobq.core.records.queues import Fire, ScheduleRecord, ScheduleSpec
from jobq.core.rules.cron import first_time, plan
from jobq.core.values.printable import one_line
from jobq.core.values.units import moment
from jobq.engine.identity import WorkerSettings
from jobq.engine.service import NOT_NOW, Service
from jobq.engine.upkeep import Leader
from jobq.errors import JobqError
from jobq.stores.base import Clock, Store

log = logging.getLogger("jobq")

OnMissed = Callable[[Fire], None]
Planner = Callable[[ScheduleRecord, int], list[Fire]]
"""`core.rules.cron.plan`, or what a server does instead for its tenants."""

_MAX_DUE = 100
"""Schedules that one pass looks at."""
_MAX_FIRES = 500
"""Times that one call fires. A schedule that catches up on many must not block other writers."""


class Schedules(Protocol):
    """The part of a store that the scheduler uses."""

    async def list_schedules(
        self, queue: QueueName | None = None, *, due: bool = False, limit: int = 100
    ) -> list[ScheduleRecord]:
        """See ScheduleStore."""
        ...

    async def fire(self, fires: Sequence[Fire]) -> list[bool]:
        """See ScheduleStore."""
        ...


class Scheduler(Service):
    """Plans due schedules (`core.rules.cron.plan`) and fires them (`store.fire`) if this worker
    leads."""

    name = "schedules"

    def __init__(
        self,
        store: Schedules,
        leader: Leader,
        settings: WorkerSettings,
        *,
        clock: Clock,
        on_missed: OnMissed | None = None,
        planner: Planner = plan,
    ) -> None:
        """`clock` only tells how late a schedule is. The store decides what is due.

        `on_missed` is called with each time that made no job, or the first of several."""
        super().__init__()
        self._store = store
        self._leader = leader
        self._settings = settings
        self._clock = clock
        self._on_missed = on_missed
        self._planner = planner

    async def tick(self) -> float:
        """Run one bounded pass. If it fired something, the next pass follows at once."""
        if await self._leader.leads() and await fire_due(
            self._store, self._clock(), self._on_missed, planner=self._planner
        ):
            return 0.0
        return self._settings.schedule_ms / 1000


async def put_planned(store: Store, specs: Iterable[ScheduleSpec], now_ms: int) -> None:
    """Store the schedules that tasks were declared with. Storing one again changes nothing."""
    for spec in specs:
        await store.put_schedule(spec, next_ms=first_time(spec, now_ms))


async def fire_due(
    store: Schedules, now_ms: int, on_missed: OnMissed | None = None, *, planner: Planner = plan
) -> int:
    """Create jobs of due schedules, up to the limits of one pass. Returns how many times fired."""
    due = await store.list_schedules(due=True, limit=_MAX_DUE)
    fires = [fire for record in due for fire in _planned(record, now_ms, planner)]
    fired = 0
    for start in range(0, len(fires), _MAX_FIRES):
        done, missed = await _fire(store, fires[start : start + _MAX_FIRES])
        fired += done
        if on_missed is not None:
            for each in missed:
                on_missed(each)
    return fired


def _planned(record: ScheduleRecord, now_ms: int, planner: Planner) -> list[Fire]:
    """Plan a schedule that is due by the store's clock, even if this machine's clock is behind."""
    try:
        return planner(record, max(now_ms, record.next_ms or 0))
    except Exception:  # a newer version may have stored it: other schedules must go on
        log.exception(
            "schedule %s of queue %s cannot be planned by this version of jobq and is skipped",
            record.spec.id,
            record.spec.queue.queue,
        )
        return []


async def _fire(store: Schedules, fires: Sequence[Fire]) -> tuple[int, list[Fire]]:
    """Fire all of them in one call, or one by one if the store refuses a job.

    A job is refused if its queue has become keyed, for example. Its time is skipped, because trying
    it again forever would block all other schedules. Returns how many times fired, and those of
    them that made no job.
    """
    try:
        done = await store.fire(fires)
    except NOT_NOW:
        raise
    except JobqError as error:
        if len(fires) > 1:
            each = [await _fire(store, [fire]) for fire in fires]
            return sum(done for done, _ in each), [fire for _, missed in each for fire in missed]
        fire = fires[0]
        log.error(
            "schedule %s of queue %s: the store refused its job, so this time is skipped: %s",
            fire.schedule,
            fire.queue.queue,
            error,
        )
        skipped = any(await store.fire([replace(fire, skipped=True, missed=True)]))
        return int(skipped), [fire] if skipped else []
    missed = [fire for fire in compress(fires, done) if fire.missed]
    for fire in missed:
        _warn_missed(fire)
    return sum(done), missed


def _warn_missed(fire: Fire) -> None:
    log.warning(
        "schedule %s of queue %s missed its time %s: it made no job, because no worker ran then or "
        "the schedule was paused",
        one_line(fire.schedule),
        one_line(fire.queue.queue),
        moment(fire.at_ms).isoformat(timespec="seconds"),
    )
