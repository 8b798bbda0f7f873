"""SyncQueue: a queue with blocking methods, `queue.sync.counts()`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, Self, Unpack

from jobq.api.bulk import put_all_blocking
from jobq.api.info import Event, JobInfo
from jobq.api.limits import LimitMethods
from jobq.api.operations import OperatorMethods
from jobq.api.options import JobOptions
from jobq.api.schedule import ScheduleMethods
from jobq.api.sync.blocking import Blocking, blocking
from jobq.api.sync.flow import SyncFlow
from jobq.api.sync.job import SyncJob
from jobq.api.sync.lock import SyncJobLock
from jobq.api.sync.selection import SyncSelection
from jobq.api.sync.task import SyncTask
from jobq.api.task import Call, Task
from jobq.client.portal import pages, run
from jobq.core.policies import Cron, Every
from jobq.core.states import State
from jobq.operations.selecting import JobCriteria

if TYPE_CHECKING:
    from jobq.api.queue import (
        Queue,
    )  # Queue.sync makes a SyncQueue, so queue.py imports this module

P = ParamSpec("P")


class SyncQueue(Blocking):
    """A queue with blocking methods. `with queue.sync:` opens and closes it; otherwise its first
    use opens it."""

    __slots__ = ("name",)

    _of: Queue

    def __init__(self, queue: Queue) -> None:
        self._of = queue
        self.name = queue.name

    @property
    def tenant(self) -> str:
        """See `Queue.tenant`."""
        return self._of.tenant

    def __enter__(self) -> Self:
        """Open."""
        run(self._of.__aenter__())
        return self

    def __exit__(
        self, t: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        """Close."""
        run(self._of.__aexit__(t, e, tb))

    def close(self) -> None:
        """See `Queue.aclose`."""
        run(self._of.aclose())

    def job(self, id: str) -> SyncJob[Any]:
        """See `Queue.job`."""
        return SyncJob(self._of.job(id))

    def task_by_name(self, name: str, **options: Unpack[JobOptions]) -> SyncTask[..., Any]:
        """See `Queue.task_by_name`."""
        return SyncTask(self._of.task_by_name(name, **options))

    def enqueue_many(self, calls: Iterable[Call[Any]]) -> list[SyncJob[Any]]:
        """See `Queue.enqueue_many`. A generator is read in the caller's thread."""
        queue = self._of
        return [SyncJob(job) for job in put_all_blocking(queue._context, queue._new_jobs(calls))]

    def flow(self, *, id: str | None = None) -> SyncFlow:
        """See `Queue.flow`."""
        return SyncFlow(self._of.flow(id=id))

    def find(
        self,
        *,
        state: State | str | None = None,
        oldest_first: bool = False,
        max_jobs: int | None = None,
        **criteria: Unpack[JobCriteria],
    ) -> Iterator[JobInfo]:
        """See `Queue.find`."""
        return pages(
            lambda: self._of.find(
                state=state, oldest_first=oldest_first, max_jobs=max_jobs, **criteria
            ),
            100,
        )

    def select(self, *states: State | str, **criteria: Unpack[JobCriteria]) -> SyncSelection:
        """See `Queue.select`."""
        return SyncSelection(self._of.select(*states, **criteria))

    def lock(self, task: Task[..., Any], /, *args: Any, **kwargs: Any) -> SyncJobLock:
        """See `Queue.lock`."""
        return SyncJobLock(self._of.lock(task, *args, **kwargs))

    def as_actor(self, name: str) -> SyncQueue:
        """See `Queue.as_actor`."""
        return SyncQueue(self._of.as_actor(name))

    def events(self, *, after: str | None = None, follow: bool = True) -> Iterator[Event]:
        """See `Queue.events`."""
        return pages(lambda: self._of.events(after=after, follow=follow), 1 if follow else 100)

    def schedule(
        self, id: str, when: Cron | Every, task: Task[P, Any], /, *args: P.args, **kwargs: P.kwargs
    ) -> None:
        """See `Queue.schedule`."""
        run(self._of.schedule(id, when, task, *args, **kwargs))

    def run_schedule(self, id: str) -> SyncJob[Any]:
        """See `Queue.run_schedule`."""
        return SyncJob(run(self._of.run_schedule(id)))

    counts = blocking(OperatorMethods.counts)
    stats = blocking(OperatorMethods.stats)
    metrics = blocking(OperatorMethods.metrics)
    workers = blocking(OperatorMethods.workers)
    flow_tree = blocking(OperatorMethods.flow_tree)
    pause = blocking(OperatorMethods.pause)
    resume = blocking(OperatorMethods.resume)
    rerun = blocking(OperatorMethods.rerun)
    rerun_flow = blocking(OperatorMethods.rerun_flow)
    remove = blocking(OperatorMethods.remove)
    purge = blocking(OperatorMethods.purge)
    obliterate = blocking(OperatorMethods.obliterate)
    unschedule = blocking(ScheduleMethods.unschedule)
    pause_schedule = blocking(ScheduleMethods.pause_schedule)
    resume_schedule = blocking(ScheduleMethods.resume_schedule)
    schedules = blocking(ScheduleMethods.schedules)
    limits = blocking(LimitMethods.limits)
    set_limits = blocking(LimitMethods.set_limits)
    hold = blocking(LimitMethods.hold)
    release_hold = blocking(LimitMethods.release_hold)
    reset_limits = blocking(LimitMethods.reset_limits)
