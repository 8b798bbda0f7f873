"""Jobs that come by the clock: `Cron` and `Every` tell when. `Queue` has all of this; workers make the jobs (`engine.scheduler`).

A schedule is known by its id. Storing the same one again changes nothing; another one under its id starts anew. The job of
a time has the id `schedule@milliseconds`, so that each time has one job, whoever makes it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ParamSpec

import msgspec
from msgspec.structs import replace

from jobq.api.info import call_of
from jobq.api.job import Job
from jobq.client.ids import new_id
from jobq.client.session import Session
from jobq.core import checks, cron
from jobq.core.checks import shown
from jobq.core.moments import moment, moment_or_none
from jobq.core.policies import Cron, Every
from jobq.core.queues import CatchUp, ScheduleRecord, ScheduleSpec
from jobq.core.records import JobSpec, QueueName
from jobq.errors import ConfigError, InvalidJob, JobNotFound
from jobq.stores.base import Store

if TYPE_CHECKING:
    from jobq.api.task import Task

P = ParamSpec("P")

MOST = 10_000
"""Schedules that are listed of one queue."""
_LONGEST = 200  # of an id: the ids of its jobs are longer


class ScheduleInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule as stored. `next_at` None: it waits for its job to end, or it is over."""

    id: str
    queue: str
    name: str  # of the task
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    cron: str | None
    tz: str
    every: timedelta | None
    after_complete: bool
    catch_up: CatchUp
    start_at: datetime | None
    end_at: datetime | None
    limit: int | None
    next_at: datetime | None
    last_at: datetime | None
    fired: int
    paused: bool
    created_at: datetime


class Scheduling(ABC):
    """The schedules of a queue."""

    qname: QueueName
    actor: str | None = None

    @abstractmethod
    async def session(self) -> Session:
        """Its session in the running event loop."""

    @abstractmethod
    def job(self, id: str) -> Job[Any]:
        """A handle on the job of that id."""

    @abstractmethod
    def now_ms(self) -> int:
        """What time it is, as far as it is known here."""

    async def schedule(
        self, id: str, when: Cron | Every, task: Task[P, Any], /, *args: P.args, **kwargs: P.kwargs
    ) -> None:
        """Make a job of this call whenever it is time. Options through `task.options(…)`.

        The same schedule again keeps its count and its next time; another one under this id starts anew.
        """
        id = check_schedule_id(id)
        if not isinstance(when, (Cron, Every)):
            raise ConfigError(f"schedule {id!r}: {shown(when)} is neither a Cron nor an Every")
        if not hasattr(task, "definition"):
            raise InvalidJob(
                f"schedule {id!r}: {shown(task)} is not a task: decorate a function with @queue.task"
            )
        if task.queue.qname != self.qname:
            raise InvalidJob(
                f"schedule {id!r}: {task!r} belongs to another queue than {self.qname.queue!r}"
            )
        spec = when.spec(self.qname, id, template(task.spec(args, kwargs), id))
        await (await self._store()).put_schedule(
            spec, next_ms=cron.first_time(spec, self.now_ms()), actor=self.actor
        )

    async def unschedule(self, id: str) -> bool:
        """Forget a schedule; the jobs it made stay. Raises JobNotFound if there is none of that id."""
        if not await (await self._store()).drop_schedule(
            self.qname, check_schedule_id(id), actor=self.actor
        ):
            raise self._missing(id)
        return True

    async def pause_schedule(self, id: str) -> bool:
        """Make no more jobs until it is resumed. False if it is paused already. Raises JobNotFound."""
        return await self._set_paused(check_schedule_id(id), True)

    async def resume_schedule(self, id: str) -> bool:
        """Make jobs again. The times that passed meanwhile were missed: its `catch_up` says what becomes of them.

        False if it is not paused. Raises JobNotFound."""
        return await self._set_paused(check_schedule_id(id), False)

    async def run_schedule(self, id: str) -> Job[Any]:
        """Make its job now, beside its times: neither its count nor its next time changes. Raises JobNotFound."""
        id = check_schedule_id(id)
        spec = (await self._schedule(id)).spec
        job = replace(
            spec.template,
            id=f"{id}@{new_id()}",
            # The end of a job that names an after-complete schedule sets its next time, and this is not the one it waits for.
            schedule=None if spec.after_complete else id,
        )
        handle = self.job(job.id)
        handle.name = job.name
        handle.settle_on(await (await self.session()).sender.put(job))
        return handle

    async def schedules(self) -> list[ScheduleInfo]:
        """All of the queue, by id."""
        records = await (await self._store()).list_schedules(self.qname, limit=MOST)
        return [schedule_info(record) for record in records]

    async def _set_paused(self, id: str, paused: bool) -> bool:
        answer = await (await self._store()).pause_schedule(
            self.qname, id, paused=paused, actor=self.actor
        )
        if answer == "missing":
            raise self._missing(id)
        return answer == "done"

    async def _schedule(self, id: str) -> ScheduleRecord:
        for record in await (await self._store()).list_schedules(self.qname, limit=MOST):
            if record.spec.id == id:
                return record
        raise self._missing(id)

    def _missing(self, id: str) -> JobNotFound:
        return JobNotFound(f"there is no schedule {id!r} in queue {self.qname.queue!r}")

    async def _store(self) -> Store:
        return (await self.session()).store


def check_schedule_id(id: object) -> str:
    """Like a job's id, and short enough for the ids of its jobs."""
    checked = checks.check_id(id, "schedule id")
    if len(checked) > _LONGEST:
        raise InvalidJob(f"schedule id={shown(id)} is too long: at most {_LONGEST} characters")
    return checked


def template(spec: JobSpec, id: str) -> JobSpec:
    """What the jobs of a schedule are made like: nothing in it changes from one making to the next, or the schedule would
    be another one each time."""
    if spec.given_id:
        raise InvalidJob(
            f"schedule {id!r}: id={spec.id!r} would be the id of all its jobs; theirs follow from their times"
        )
    if spec.delay_ms or spec.at_ms is not None:
        raise InvalidJob(f"schedule {id!r}: its times say when; leave out delay and at")
    if spec.after:
        raise InvalidJob(
            f"schedule {id!r}: after= names jobs that have long ended the next time; add them in the handler"
        )
    return replace(spec, id=id)


def planned(when: Cron | Every, task: Task[..., Any]) -> ScheduleSpec:
    """The schedule of `@queue.task(schedule=…)`, under the task's name. ConfigError if the function needs arguments."""
    try:
        return when.spec(
            task.queue.qname, check_schedule_id(task.name), template(task.spec((), {}), task.name)
        )
    except InvalidJob as error:
        raise ConfigError(
            f"task {task.name} with a schedule is called without arguments: {error}"
        ) from None


def schedule_info(record: ScheduleRecord) -> ScheduleInfo:
    """A schedule, for users."""
    spec = record.spec
    args, kwargs = call_of(spec.template.codec, spec.template.payload)
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
        limit=spec.limit,
        next_at=moment_or_none(record.next_ms),
        last_at=moment_or_none(record.last_ms),
        fired=record.fired,
        paused=record.paused,
        created_at=moment(record.created_ms),
    )
