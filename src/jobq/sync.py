"""The blocking face, for Django, Flask and scripts: `task.sync.enqueue(…)`, `job.sync.result()`, `queue.sync.counts()`.

Nothing is written twice: every method hands the async one to an event loop in a thread of its own, the portal. There is
one per process, started at the first use and again after a fork; any number of threads may use it at once.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from types import EllipsisType, TracebackType
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Self, TypeVar, Unpack

from jobq.core.checks import Seconds
from jobq.core.states import State
from jobq.session import CHUNK, batches, close_sessions_here

if TYPE_CHECKING:
    from jobq.core.policies import Bucket, Rate
    from jobq.info import Event, JobInfo, MinuteMetrics, QueueStats, WorkerInfo
    from jobq.job import Job
    from jobq.limits import QueueLimits
    from jobq.options import JobOptions
    from jobq.queue import Queue
    from jobq.task import Call, Task

__all__ = ["Portal", "SyncJob", "SyncQueue", "SyncTask", "run"]

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")

_GOODBYE = 5.0
"""Seconds the end of the process waits for the portal to close its stores."""


class Portal:
    """An event loop in a thread, for code that has none."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run it to its end in the portal and answer with its result. An interrupt here cancels it there."""
        if asyncio._get_running_loop() is not None:
            coroutine.close()
            raise RuntimeError("`.sync` blocks, and an event loop is running in this thread: use the async method, with `await`")
        future = asyncio.run_coroutine_threadsafe(coroutine, self._started())
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def _started(self) -> asyncio.AbstractEventLoop:
        if (loop := self._loop) is not None:
            return loop
        with self._lock:
            if self._loop is None:
                loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=loop.run_forever, name="jobq portal", daemon=True)
                self._thread.start()
                self._loop = loop
            return self._loop

    def stop(self) -> None:
        """Close the portal's stores and end its thread; the next use starts another."""
        with self._lock:
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is None or thread is None:
            return
        closing = asyncio.run_coroutine_threadsafe(close_sessions_here(), loop)
        try:
            closing.result(_GOODBYE)
        except Exception:  # at the end of the process threads cannot be started any more; all that was answered is stored
            pass
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_GOODBYE)
        if not thread.is_alive():
            loop.close()

    def forget(self) -> None:
        """In a forked child: the thread did not come along, and what it held belongs to the parent."""
        self.__init__()  # type: ignore[misc]


portal = Portal()
os.register_at_fork(after_in_child=portal.forget)
atexit.register(portal.stop)

run = portal.run
"""Run a coroutine in the portal and wait for it: for async code of jobq that has no blocking twin."""


def _pages(source: Callable[[], AsyncIterator[T]], size: int) -> Iterator[T]:
    """The items of an async iterator, fetched `size` at a time: one trip to the portal per page."""
    iterator = source()
    while page := run(_take(iterator, size)):
        yield from page


async def _take(iterator: AsyncIterator[T], size: int) -> list[T]:
    items: list[T] = []
    async for item in iterator:
        items.append(item)
        if len(items) == size:
            break
    return items


class SyncJob(Generic[R_co]):
    """A job's handle, blocking."""

    __slots__ = ("_job", "duplicate", "id", "name", "queue", "snapshot")

    def __init__(self, job: Job[R_co]) -> None:
        self._job = job
        self.id = job.id
        self.queue = job.queue
        self.name = job.name
        self.duplicate = job.duplicate
        self.snapshot = job.snapshot

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

    def signal(self, name: str, value: Any = None) -> None:
        """See `Job.signal`."""
        run(self._job.signal(name, value))


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

    def enqueue_many(self, calls: Iterable[tuple[Any, ...] | Mapping[str, Any]]) -> list[SyncJob[R]]:
        """See `Task.enqueue_many`. A generator is read in the caller's thread: it may use the caller's database connection."""
        put = self._task.queue.put
        return [SyncJob(job) for chunk in batches(self._task.wanted(calls), CHUNK) for job in run(put(chunk))]

    def call(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """See `Task.call`."""
        return run(self._task.call(*args, **kwargs))

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """See `Task.bind`."""
        return self._task.bind(*args, **kwargs)

    def broadcast(self, queues: Sequence[Queue], *args: P.args, **kwargs: P.kwargs) -> list[SyncJob[R]]:
        """See `Task.broadcast`."""
        return [SyncJob(job) for job in run(self._task.broadcast(queues, *args, **kwargs))]


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

    def __exit__(self, t: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
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
        put = self._queue.put
        return [SyncJob(job) for chunk in batches(self._queue.wanted(calls), CHUNK) for job in run(put(chunk))]

    def find(
        self,
        *,
        state: State | str | None = None,
        name: str | None = None,
        key: str | None = None,
        limit: int | None = None,
    ) -> Iterator[JobInfo]:
        """See `Queue.find`."""
        return _pages(lambda: self._queue.find(state=state, name=name, key=key, limit=limit), 100)

    def events(self, *, after: str | None = None) -> Iterator[Event]:
        """See `Queue.events`."""
        return _pages(lambda: self._queue.events(after=after), 1)

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
        key: str | None = None,
    ) -> None:
        """See `Queue.set_limits`."""
        run(self._queue.set_limits(limit=limit, rate=rate, key_limit=key_limit, key_rate=key_rate, key=key))

    def reset_limits(self, *, key: str | None = None) -> None:
        """See `Queue.reset_limits`."""
        run(self._queue.reset_limits(key=key))

    def clear(self, *, delayed: bool = False) -> int:
        """See `Queue.clear`."""
        return run(self._queue.clear(delayed=delayed))

    def clean(self, state: State | str, *, older_than: Seconds = 0, limit: int | None = None) -> int:
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
