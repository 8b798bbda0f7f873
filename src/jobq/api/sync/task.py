"""SyncTask: a task with blocking methods, `task.sync.enqueue(…)`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, Unpack

from jobq.api.bulk import put_all_blocking
from jobq.api.options import JobOptions
from jobq.api.sync.job import SyncJob
from jobq.client.portal import run
from jobq.core.bounds import queue_full
from jobq.errors import QueueFull

if TYPE_CHECKING:
    # Task.sync makes a SyncTask, so task.py imports this module.
    from jobq.api.job import Job
    from jobq.api.task import Call, HasContext, Task

P = ParamSpec("P")
R = TypeVar("R")


class SyncTask(Generic[P, R]):
    """A task with blocking methods."""

    __slots__ = ("_task", "name")

    def __init__(self, task: Task[P, R]) -> None:
        self._task = task
        self.name = task.name

    def options(self, **options: Unpack[JobOptions]) -> SyncTask[P, R]:
        """See `Task.options`."""
        return SyncTask(self._task.options(**options))

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> SyncJob[R]:
        """See `Task.enqueue`."""
        task = self._task
        if task._context.surrounding() is not None:
            call = task, task._spec(args, kwargs), args, kwargs
            return SyncJob(put_all_blocking(task._context, [call], "enqueue")[0])
        return SyncJob(run(task.enqueue(*args, **kwargs)))

    def enqueue_many(
        self, calls: Iterable[tuple[Any, ...] | Mapping[str, Any]]
    ) -> list[SyncJob[R]]:
        """See `Task.enqueue_many`. A generator is read in the caller's thread, so it may use the
        caller's database connection."""
        task = self._task
        return [SyncJob(job) for job in put_all_blocking(task._context, task._new_jobs(calls))]

    def call(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """See `Task.call`."""
        if (surrounding := self._task._context.surrounding()) is not None:
            surrounding.refuse(f"{self.name}.sync.call()")
        return run(self._task.call(*args, **kwargs))

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """See `Task.bind`."""
        return self._task.bind(*args, **kwargs)

    def broadcast(
        self, queues: Sequence[HasContext], *args: P.args, **kwargs: P.kwargs
    ) -> list[SyncJob[R]]:
        """See `Task.broadcast`."""
        copies = self._task._copies(queues, args, kwargs)
        jobs: list[Job[R]] = []
        for copy, spec in copies:
            try:
                jobs += put_all_blocking(copy._context, [(copy, spec, args, kwargs)])
            except QueueFull as full:
                raise queue_full(full.queue, full.max_waiting, accepted=jobs) from None
        return [SyncJob(job) for job in jobs]
