"""The blocking face, for Django, Flask and scripts: `task.sync.enqueue(…)`, `job.sync.result()`, `queue.sync.counts()`.

Nothing is written twice: every method hands the async one to an event loop in a thread of its own, the portal.
`chain`, `group` and `chord` are here under their own names: `from jobq import sync`, `sync.chain(load, send, first=(7,))`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from types import EllipsisType, TracebackType
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Self, TypeVar, Unpack

from jobq.api import flow as flows
from jobq.api import tree
from jobq.client.portal import Portal, pages, portal, run
from jobq.client.session import CHUNK, batches
from jobq.core.bounds import queue_full
from jobq.core.checks import Seconds
from jobq.core.records import JobKey
from jobq.core.states import State
from jobq.errors import QueueFull

if TYPE_CHECKING:
    from jobq.api.flow import Flow
    from jobq.api.info import Event, JobInfo, MinuteMetrics, QueueStats, WorkerInfo
    from jobq.api.job import Job
    from jobq.api.limits import QueueLimits
    from jobq.api.options import JobOptions
    from jobq.api.queue import Queue
    from jobq.api.schedule import ScheduleInfo
    from jobq.api.task import Call, Task, Wanted
    from jobq.api.tree import FlowTree
    from jobq.core.policies import Bucket, Cron, Every, Rate

__all__ = [
    "Portal",
    "SyncFlow",
    "SyncJob",
    "SyncQueue",
    "SyncTask",
    "chain",
    "chord",
    "group",
    "portal",
    "run",
]

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


def _put(queue: Queue, wanted: Iterable[Wanted]) -> list[Job[Any]]:
    """See `Queue.put`. A chunk at a time: what makes the next one runs in the caller's thread."""
    jobs: list[Job[Any]] = []
    most = refused = 0
    for chunk in batches(wanted, CHUNK):
        try:
            jobs += run(queue.put(chunk))
        except QueueFull as full:
            jobs += full.accepted
            most, refused = full.max_waiting, refused + full.refused
    if refused:
        raise queue_full(queue.name, most, accepted=jobs, refused=refused)
    return jobs


class SyncJob(Generic[R_co]):
    """A job's handle, blocking."""

    __slots__ = ("_job",)

    def __init__(self, job: Job[R_co]) -> None:
        self._job = job

    @property
    def id(self) -> str:
        """See `Job.id`."""
        return self._job.id

    @property
    def queue(self) -> str:
        """See `Job.queue`."""
        return self._job.queue

    @property
    def name(self) -> str:
        """See `Job.name`."""
        return self._job.name

    @property
    def duplicate(self) -> bool:
        """See `Job.duplicate`."""
        return self._job.duplicate

    @property
    def snapshot(self) -> JobInfo | None:
        """See `Job.snapshot`."""
        return self._job.snapshot

    @property
    def ref(self) -> R_co:
        """See `Job.ref`."""
        return self._job.ref

    @property
    def job_key(self) -> JobKey:
        """See `Job.job_key`: for `after=[…]`."""
        return self._job.job_key

    def __repr__(self) -> str:
        return repr(self._job)

    def info(self) -> JobInfo:
        """See `Job.info`."""
        return run(self._job.info())

    def state(self) -> State:
        """See `Job.state`."""
        return run(self._job.state())

    def logs(self) -> list[str]:
        """See `Job.logs`."""
        return run(self._job.logs())

    def wait(self, *, timeout: Seconds | None = None) -> JobInfo:
        """See `Job.wait`."""
        return run(self._job.wait(timeout=timeout))

    def result(self, *, timeout: Seconds | None = None) -> R_co:
        """See `Job.result`."""
        return run(self._job.result(timeout=timeout))

    def as_actor(self, name: str) -> SyncJob[R_co]:
        """See `Job.as_actor`."""
        return SyncJob(self._job.as_actor(name))

    def cancel(self, *, cascade: bool = False) -> bool:
        """See `Job.cancel`."""
        return run(self._job.cancel(cascade=cascade))

    def rerun(self) -> bool:
        """See `Job.rerun`."""
        return run(self._job.rerun())

    def promote(self) -> bool:
        """See `Job.promote`."""
        return run(self._job.promote())

    def reprioritise(self, priority: int) -> bool:
        """See `Job.reprioritise`."""
        return run(self._job.reprioritise(priority))

    def reschedule(self, *, delay: Seconds | None = None, at: datetime | None = None) -> bool:
        """See `Job.reschedule`."""
        return run(self._job.reschedule(delay=delay, at=at))

    def update(self, *args: Any, **kwargs: Any) -> bool:
        """See `Job.update`."""
        return run(self._job.update(*args, **kwargs))

    def remove(self) -> bool:
        """See `Job.remove`."""
        return run(self._job.remove())

    def signal(self, name: str, value: Any = None) -> bool:
        """See `Job.signal`."""
        return run(self._job.signal(name, value))


class SyncTask(Generic[P, R]):
    """A task, blocking."""

    __slots__ = ("_task", "name")

    def __init__(self, task: Task[P, R]) -> None:
        self._task = task
        self.name = task.name

    def options(self, **options: Unpack[JobOptions]) -> SyncTask[P, R]:
        """See `Task.options`."""
        return SyncTask(self._task.options(**options))

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> SyncJob[R]:
        """See `Task.enqueue`."""
        return SyncJob(run(self._task.enqueue(*args, **kwargs)))

    def enqueue_many(
        self, calls: Iterable[tuple[Any, ...] | Mapping[str, Any]]
    ) -> list[SyncJob[R]]:
        """See `Task.enqueue_many`. A generator is read in the caller's thread: it may use the caller's database connection."""
        return [SyncJob(job) for job in _put(self._task.queue, self._task.wanted(calls))]

    def call(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """See `Task.call`."""
        return run(self._task.call(*args, **kwargs))

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """See `Task.bind`."""
        return self._task.bind(*args, **kwargs)

    def broadcast(
        self, queues: Sequence[Queue], *args: P.args, **kwargs: P.kwargs
    ) -> list[SyncJob[R]]:
        """See `Task.broadcast`."""
        return [SyncJob(job) for job in run(self._task.broadcast(queues, *args, **kwargs))]


class SyncFlow:
    """A flow, blocking: `with queue.sync.flow() as flow:`."""

    __slots__ = ("_flow", "id")

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self.id = flow.id

    def add(self, task: Task[P, R], *args: P.args, **kwargs: P.kwargs) -> SyncJob[R]:
        """See `Flow.add`."""
        return SyncJob(self._flow.add(task, *args, **kwargs))

    def submit(self) -> None:
        """See `Flow.submit`."""
        run(self._flow.submit())

    def __enter__(self) -> Self:
        """Nothing is stored before the context is left."""
        return self

    def __exit__(
        self, t: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        """Submit, unless an error came out of the context."""
        if t is None:
            self.submit()


def chain(*steps: Task[..., Any], first: tuple[Any, ...] = ()) -> SyncJob[Any]:
    """See `jobq.chain`."""
    return SyncJob(run(flows.chain(*steps, first=first)))


def group(task: Task[..., R], calls: Iterable[tuple[Any, ...]]) -> SyncJob[list[R]]:
    """See `jobq.group`. A generator is read in the caller's thread."""
    return SyncJob(run(flows.group(task, list(calls))))


def chord(
    task: Task[..., R], calls: Iterable[tuple[Any, ...]], then: Task[..., Any]
) -> SyncJob[Any]:
    """See `jobq.chord`. A generator is read in the caller's thread."""
    return SyncJob(run(flows.chord(task, list(calls), then)))


class SyncQueue:
    """A queue, blocking. `with queue.sync:` opens and closes it; without, it opens by itself."""

    __slots__ = ("_queue", "name", "tenant")

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self.name = queue.name
        self.tenant = queue.tenant

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

    def named(self, name: str, **options: Unpack[JobOptions]) -> SyncTask[..., Any]:
        """See `Queue.named`."""
        return SyncTask(self._queue.named(name, **options))

    def enqueue_many(self, calls: Iterable[Call[Any]]) -> list[SyncJob[Any]]:
        """See `Queue.enqueue_many`. A generator is read in the caller's thread."""
        return [SyncJob(job) for job in _put(self._queue, self._queue.wanted(calls))]

    def flow(self, *, id: str | None = None) -> SyncFlow:
        """See `Queue.flow`."""
        return SyncFlow(self._queue.flow(id=id))

    def flow_tree(self, id: str, *, limit: int = tree.MOST) -> FlowTree:
        """See `Queue.flow_tree`."""
        return run(self._queue.flow_tree(id, limit=limit))

    def find(
        self,
        *,
        state: State | str | None = None,
        name: str | None = None,
        key: str | None = None,
        limit: int | None = None,
    ) -> Iterator[JobInfo]:
        """See `Queue.find`."""
        return pages(lambda: self._queue.find(state=state, name=name, key=key, limit=limit), 100)

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
        run(self._queue.set_limits(**given, key=key))  # type: ignore[arg-type]  # each as it came

    def hold(self, seconds: Seconds, key: str | None = None) -> None:
        """See `Queue.hold`."""
        run(self._queue.hold(seconds, key))

    def release_hold(self, key: str | None = None) -> bool:
        """See `Queue.release_hold`."""
        return run(self._queue.release_hold(key))

    def reset_limits(self, *, key: str | None = None) -> None:
        """See `Queue.reset_limits`."""
        run(self._queue.reset_limits(key=key))

    def clear(self, *, delayed: bool = False) -> int:
        """See `Queue.clear`."""
        return run(self._queue.clear(delayed=delayed))

    def clean(
        self, state: State | str, *, older_than: Seconds = 0, limit: int | None = None
    ) -> int:
        """See `Queue.clean`."""
        return run(self._queue.clean(state, older_than=older_than, limit=limit))

    def rerun(self, *ids: str, name: str | None = None) -> int:
        """See `Queue.rerun`."""
        return run(self._queue.rerun(*ids, name=name))

    def purge(self, *ids: str, name: str | None = None) -> int:
        """See `Queue.purge`."""
        return run(self._queue.purge(*ids, name=name))

    def obliterate(self, *, force: bool = False) -> None:
        """See `Queue.obliterate`."""
        run(self._queue.obliterate(force=force))
