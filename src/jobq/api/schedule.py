"""Schedules: jobs that are made at the times of a `Cron` or `Every`. `Queue` inherits this.

Workers make the jobs (`engine.scheduler`). A schedule has an id: storing the same schedule again
changes nothing, and storing a different one under the same id replaces it. A scheduled job has the
id `schedule@milliseconds`, so each time gets one job, however many workers try.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, ParamSpec

import msgspec

from jobq.api.context import QueueMethods
from jobq.api.enqueueing import Enqueueing
from jobq.api.info import call_of
from jobq.api.job import Job
from jobq.api.task import Task
from jobq.client.ids import new_id
from jobq.core.policies import Cron, Every
from jobq.core.records.queues import CatchUp, ScheduleRecord
from jobq.core.rules import cron
from jobq.core.rules.new_jobs import check_schedule_id
from jobq.core.values.checks import shown
from jobq.core.values.units import moment, moment_or_none
from jobq.errors import ConfigError, InvalidJob
from jobq.operations import schedules

P = ParamSpec("P")


class ScheduleInfo(msgspec.Struct, frozen=True, kw_only=True, rename={"times": "limit"}):
    """A schedule as stored. `next_at` is None while it waits for its job to end, and after its last
    time."""

    id: str
    queue: str
    name: str  # the task's
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    cron: str | None
    tz: str
    every: timedelta | None
    after_complete: bool
    catch_up: CatchUp
    start_at: datetime | None
    end_at: datetime | None
    times: int | None  # how often it fires at most; None: no limit
    next_at: datetime | None
    last_at: datetime | None
    fired: int
    paused: bool
    created_at: datetime


class ScheduleMethods(QueueMethods):
    """The methods of `Queue` for schedules."""

    async def schedule(
        self, id: str, when: Cron | Every, task: Task[P, Any], /, *args: P.args, **kwargs: P.kwargs
    ) -> None:
        """Enqueue this call at every time of `when`. Give options through `task.options(…)`.

        Storing the same schedule again keeps its count and its next time. A different schedule
        under this id replaces it and starts from zero.
        """
        id = check_schedule_id(id)
        if not isinstance(when, (Cron, Every)):
            raise ConfigError(f"schedule {id!r}: {shown(when)} is neither a Cron nor an Every")
        if not isinstance(task, Task):
            raise InvalidJob(
                f"schedule {id!r}: {shown(task)} is not a task: decorate the function with "
                "@queue.task"
            )
        if task._context.qname != self.qname:
            raise InvalidJob(
                f"schedule {id!r}: {task!r} belongs to another queue than {self.qname.queue!r}"
            )
        job = task._spec(args, kwargs)
        if self._context.enqueue_middleware:
            job = await Enqueueing(task, job, args, kwargs, "schedule").revised()
        spec = when.spec(self.qname, id, schedules.template(job, id))
        await (await self._context.store()).put_schedule(
            spec, next_ms=cron.first_time(spec, self._context.now_ms()), actor=self.actor
        )

    async def unschedule(self, id: str) -> bool:
        """Remove a schedule. The jobs it made stay. Raises JobNotFound if there is no such
        schedule."""
        await schedules.remove(await self._context.store(), self.qname, id, self.actor)
        return True

    async def pause_schedule(self, id: str) -> bool:
        """Make no more jobs until it is resumed. False if it is already paused. Raises
        JobNotFound."""
        return await self._set_paused(id, True)

    async def resume_schedule(self, id: str) -> bool:
        """Make jobs again. `catch_up` decides what happens for the times that were missed.

        False if it is not paused. Raises JobNotFound."""
        return await self._set_paused(id, False)

    async def run_schedule(self, id: str) -> Job[Any]:
        """Enqueue the schedule's job now. Its count and its next time do not change. Raises
        JobNotFound."""
        session = await self._context.session()
        job = await schedules.extra_job(session.store, self.qname, id, new_id())
        handle = Job[Any](self._context, job.id, job.name)
        handle._stored_as(await session.sender.put(job))
        return handle

    async def schedules(self) -> list[ScheduleInfo]:
        """All schedules of the queue, ordered by id."""
        records = await schedules.of_queues(await self._context.store(), [self.qname])
        return [schedule_info(record) for record in records]

    async def _set_paused(self, id: str, paused: bool) -> bool:
        store = await self._context.store()
        return await schedules.set_paused(store, self.qname, id, paused, self.actor)


def schedule_info(record: ScheduleRecord) -> ScheduleInfo:
    """The ScheduleInfo of a record."""
    spec = record.spec
    args, kwargs = call_of(spec.template.codec, spec.template.payload, spec.template.name)
    return ScheduleInfo(
        id=spec.id,
        queue=spec.queue.queue,
        name=spec.template.name,
        args=args,
        kwargs=kwargs,
        cron=spec.cron,
        tz=spec.tz,
        every=None if spec.every_ms is None else timedelta(milliseconds=spec.every_ms),
        after_complete=spec.after_complete,
        catch_up=spec.catch_up,
        start_at=moment_or_none(spec.start_ms),
        end_at=moment_or_none(spec.end_ms),
        times=spec.limit,
        next_at=moment_or_none(record.next_ms),
        last_at=moment_or_none(record.last_ms),
        fired=record.fired,
        paused=record.paused,
        created_at=moment(record.created_ms),
    )
