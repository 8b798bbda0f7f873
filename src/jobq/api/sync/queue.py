"""SyncQueue: a queue with blocking methods, `queue.sync.counts()`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import EllipsisType, TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, Self, Unpack

from jobq.api.bulk import put_all_blocking
from jobq.api.info import Event, JobInfo, MinuteMetrics, QueueStats, WorkerInfo
from jobq.api.limits import QueueLimits
from jobq.api.options import JobOptions
from jobq.api.schedule import ScheduleInfo
from jobq.api.sync.flow import SyncFlow
from jobq.api.sync.job import SyncJob
from jobq.api.sync.lock import SyncJobLock
from jobq.api.sync.selection import SyncSelection
from jobq.api.sync.task import SyncTask
from jobq.api.task import Call, Task
from jobq.client.portal import pages, run
from jobq.core.checks import Seconds
from jobq.core.policies import Bucket, Cron, Every, Rate
from jobq.core.states import State
from jobq.operations import flows
from jobq.operations.flows import FlowTree
from jobq.operations.selecting import JobCriteria

if TYPE_CHECKING:
    from jobq.api.queue import (
        Queue,
    )  # Queue.sync makes a SyncQueue, so queue.py imports this module

P = ParamSpec("P")


class SyncQueue:
    """A queue with blocking methods. `with queue.sync:` opens and closes it; otherwise its first
    use opens it."""

    __slots__ = ("_queue", "name")

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self.name = queue.name

    @property
    def tenant(self) -> str:
        """See `Queue.tenant`."""
        return self._queue.tenant

    def __enter__(self) -> Self:
        """Open."""
        run(self._queue.__aenter__())
        return self

    def __exit__(
        self, t: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        """Close."""
        run(self._queue.__aexit__(t, e, tb))

    def close(self) -> None:
        """See `Queue.aclose`."""
        run(self._queue.aclose())

    def job(self, id: str) -> SyncJob[Any]:
        """See `Queue.job`."""
        return SyncJob(self._queue.job(id))

    def task_by_name(self, name: str, **options: Unpack[JobOptions]) -> SyncTask[..., Any]:
        """See `Queue.task_by_name`."""
        return SyncTask(self._queue.task_by_name(name, **options))

    def enqueue_many(self, calls: Iterable[Call[Any]]) -> list[SyncJob[Any]]:
        """See `Queue.enqueue_many`. A generator is read in the caller's thread."""
        queue = self._queue
        return [SyncJob(job) for job in put_all_blocking(queue._context, queue._new_jobs(calls))]

    def flow(self, *, id: str | None = None) -> SyncFlow:
        """See `Queue.flow`."""
        return SyncFlow(self._queue.flow(id=id))

    def flow_tree(self, id: str, *, max_jobs: int = flows.MAX_JOBS) -> FlowTree:
        """See `Queue.flow_tree`."""
        return run(self._queue.flow_tree(id, max_jobs=max_jobs))

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
            lambda: self._queue.find(
                state=state, oldest_first=oldest_first, max_jobs=max_jobs, **criteria
            ),
            100,
        )

    def select(self, *states: State | str, **criteria: Unpack[JobCriteria]) -> SyncSelection:
        """See `Queue.select`."""
        return SyncSelection(self._queue.select(*states, **criteria))

    def lock(self, task: Task[..., Any], /, *args: Any, **kwargs: Any) -> SyncJobLock:
        """See `Queue.lock`."""
        return SyncJobLock(self._queue.lock(task, *args, **kwargs))

    def as_actor(self, name: str) -> SyncQueue:
        """See `Queue.as_actor`."""
        return SyncQueue(self._queue.as_actor(name))

    def events(self, *, after: str | None = None, follow: bool = True) -> Iterator[Event]:
        """See `Queue.events`."""
        return pages(lambda: self._queue.events(after=after, follow=follow), 1 if follow else 100)

    def counts(self) -> dict[State, int]:
        """See `Queue.counts`."""
        return run(self._queue.counts())

    def stats(self) -> QueueStats:
        """See `Queue.stats`."""
        return run(self._queue.stats())

    def metrics(self, *, minutes: int = 60) -> list[MinuteMetrics]:
        """See `Queue.metrics`."""
        return run(self._queue.metrics(minutes=minutes))

    def workers(self) -> list[WorkerInfo]:
        """See `Queue.workers`."""
        return run(self._queue.workers())

    def schedule(
        self, id: str, when: Cron | Every, task: Task[P, Any], /, *args: P.args, **kwargs: P.kwargs
    ) -> None:
        """See `Queue.schedule`."""
        run(self._queue.schedule(id, when, task, *args, **kwargs))

    def unschedule(self, id: str) -> bool:
        """See `Queue.unschedule`."""
        return run(self._queue.unschedule(id))

    def pause_schedule(self, id: str) -> bool:
        """See `Queue.pause_schedule`."""
        return run(self._queue.pause_schedule(id))

    def resume_schedule(self, id: str) -> bool:
        """See `Queue.resume_schedule`."""
        return run(self._queue.resume_schedule(id))

    def run_schedule(self, id: str) -> SyncJob[Any]:
        """See `Queue.run_schedule`."""
        return SyncJob(run(self._queue.run_schedule(id)))

    def schedules(self) -> list[ScheduleInfo]:
        """See `Queue.schedules`."""
        return run(self._queue.schedules())

    def pause(self) -> None:
        """See `Queue.pause`."""
        run(self._queue.pause())

    def resume(self) -> None:
        """See `Queue.resume`."""
        run(self._queue.resume())

    def limits(self) -> QueueLimits:
        """See `Queue.limits`."""
        return run(self._queue.limits())

    def set_limits(
        self,
        *,
        limit: int | EllipsisType | None = ...,
        rate: Rate | Bucket | EllipsisType | None = ...,
        key_limit: int | EllipsisType | None = ...,
        key_rate: Rate | Bucket | EllipsisType | None = ...,
        max_waiting: int | EllipsisType | None = ...,
        key: str | None = None,
    ) -> None:
        """See `Queue.set_limits`."""
        given = {
            "limit": limit,
            "rate": rate,
            "key_limit": key_limit,
            "key_rate": key_rate,
            "max_waiting": max_waiting,
        }
        run(self._queue.set_limits(**given, key=key))  # type: ignore[arg-type]  # passed through unchanged

    def hold(self, seconds: Seconds, key: str | None = None) -> None:
        """See `Queue.hold`."""
        run(self._queue.hold(seconds, key))

    def release_hold(self, key: str | None = None) -> bool:
        """See `Queue.release_hold`."""
        return run(self._queue.release_hold(key))

    def reset_limits(self, *, key: str | None = None) -> None:
        """See `Queue.reset_limits`."""
        run(self._queue.reset_limits(key=key))

    def rerun(self, *ids: str, name: str | None = None) -> int:
        """See `Queue.rerun`."""
        return run(self._queue.rerun(*ids, name=name))

    def rerun_flow(self, id: str) -> int:
        """See `Queue.rerun_flow`."""
        return run(self._queue.rerun_flow(id))

    def remove(self, *ids: str) -> int:
        """See `Queue.remove`."""
        return run(self._queue.remove(*ids))

    def purge(
        self,
        *states: State | str,
        name: str | None = None,
        older_than: Seconds = 0,
        max_jobs: int | None = None,
    ) -> int:
        """See `Queue.purge`."""
        return run(self._queue.purge(*states, name=name, older_than=older_than, max_jobs=max_jobs))

    def obliterate(self, *, force: bool = False) -> None:
        """See `Queue.obliterate`."""
        run(self._queue.obliterate(force=force))
