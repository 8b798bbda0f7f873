"""A queue: tasks are registered with it, jobs are enqueued in it, and operators manage it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, Literal, ParamSpec, Self, TypeVar, Unpack, cast, overload

from jobq.api.batch import BatchDecorator
from jobq.api.blocking import Blocking, blocking
from jobq.api.command import make_command
from jobq.api.context import Definition, QueueContext
from jobq.api.enqueueing import EnqueueMiddleware, NewJob, put_all, put_all_blocking
from jobq.api.event_stream import EventStream
from jobq.api.flow import Flow, SyncFlow
from jobq.api.info import Event, JobInfo
from jobq.api.job import Job, SyncJob
from jobq.api.locks import LockMethods, SyncJobLock
from jobq.api.middleware import Middleware, check_middleware
from jobq.api.options import (
    NOTHING,
    JobOptions,
    TaskOptions,
    calls_only,
    queue_config,
    retention_data,
    task_defaults,
)
from jobq.api.queue_operations import LimitMethods, OperatorMethods, declared_limits
from jobq.api.schedule import ScheduleMethods
from jobq.api.selection import SyncSelection
from jobq.api.task import AsyncTask, Call, PlainTask, SyncTask, Task, TaskDecorator, make_task
from jobq.api.task_handler import TaskHandler
from jobq.api.tasks import Tasks
from jobq.client.portal import pages, run
from jobq.client.tenants import tenant_for
from jobq.core.policies import Bucket, Cron, Every, Permissions, Rate, Retention
from jobq.core.records.queues import QueueConfig
from jobq.core.records.states import State
from jobq.core.values import checks
from jobq.core.values.checks import Seconds, shown
from jobq.core.values.codec import Codec, codec_pair, get_codec
from jobq.core.values.meta import check_event_names
from jobq.engine.handler import ExecutorName
from jobq.errors import ConfigError, InvalidJob
from jobq.operations.selecting import JobCriteria
from jobq.stores.base import Clock

P = ParamSpec("P")
R = TypeVar("R")

DEFAULT_URL = "sqlite:///jobq.db"
DEFAULT_MAX_PAYLOAD = 1024 * 1024
"""Bytes. A job with larger data should carry the address of a file or an object instead."""
MAX_PARTITIONS = 1024
"""More than there are machines to spread a queue over; a claim looks at every partition."""


class Queue(OperatorMethods, LimitMethods, ScheduleMethods, LockMethods):
    """A named queue in the store at `url` (default: JQ_URL when the queue opens, else
    sqlite:///jobq.db).

    `async with queue:` opens and closes it. Without that, the first use opens it and `aclose()`
    closes it. Any number of event loops and threads may use one Queue; each event loop has its own
    store handle, shared with the other queues of the same URL.

    Opening the queue stores what the constructor declares (mode, limits, retention, …). It raises
    ConfigError if the store has a conflicting declaration.

    `executor` and `permissions` are those of all tasks that name none. Like other options of a
    task, they live in worker code and are not stored. `defaults` are job options of all tasks, such
    as `{"retry": 5, "timeout": 30}`; a task's own options override them.

    `codec` encodes arguments and results. With `result_codec`, that one encodes results, progress
    and signals instead.

    `middleware` is called around each run of the queue's tasks, `enqueue_middleware` around each
    job that this process enqueues. The first of a list is the outermost.
    """

    def __init__(
        self,
        name: str = "default",
        url: str | None = None,
        *,
        tenant: str | None = None,
        mode: Literal["plain", "keyed"] | None = None,
        limit: int | None = None,
        key_limit: int | None = None,
        rate: Rate | Bucket | None = None,
        key_rate: Rate | Bucket | None = None,
        max_waiting: int | None = None,
        limits_version: int = 1,
        partitions: int | None = None,
        retention: Retention | None = None,
        dead_letters: str | None = None,
        event_meta: Sequence[str] | None = None,
        codec: str | Codec = "json",
        result_codec: str | Codec | None = None,
        max_payload: int = DEFAULT_MAX_PAYLOAD,
        executor: ExecutorName | None = None,
        permissions: Permissions | None = None,
        middleware: Iterable[Middleware] | None = None,
        enqueue_middleware: Iterable[EnqueueMiddleware] | None = None,
        defaults: JobOptions | None = None,
    ) -> None:
        self.name = checks.check_queue_name(name, "queue name", error=ConfigError)
        if url is not None and (not isinstance(url, str) or not url):
            raise ConfigError(
                f"url={shown(url)} is not a store URL: give a string such as {DEFAULT_URL!r}"
            )
        named = tenant_for(url or os.environ.get("JQ_URL") or "", tenant)
        if named is not None:
            checks.check_tenant(named, error=ConfigError)
        if mode is not None:
            checks.check_choice(mode, "mode", ("plain", "keyed"), error=ConfigError)
        if mode == "plain" and (key_limit is not None or key_rate is not None):
            raise ConfigError(
                f"queue {name!r} is plain: its jobs have no keys to limit; use mode='keyed', "
                "or limit= and rate="
            )
        declared_codec = get_codec(codec)
        if result_codec is not None:
            declared_codec = codec_pair(codec, result_codec)
        declared_max_payload = checks.check_int(
            max_payload, "max_payload", low=1, error=ConfigError
        )
        config = queue_config(
            mode=mode,
            limits=declared_limits(
                limit=limit,
                key_limit=key_limit,
                rate=rate,
                key_rate=key_rate,
                max_waiting=max_waiting,
            ),
            limits_version=checks.check_int(
                limits_version, "limits_version", low=1, error=ConfigError
            ),
            partitions=None
            if partitions is None
            else checks.check_int(
                partitions, "partitions", low=1, high=MAX_PARTITIONS, error=ConfigError
            ),
            retention=retention_data(retention),
            dead_letters=None
            if dead_letters is None
            else checks.check_queue_name(dead_letters, "dead_letters", error=ConfigError),
            event_meta=None if event_meta is None else check_event_names(event_meta),
        )
        self._context = QueueContext(
            named,
            self.name,
            url or self._default_url,
            config,
            declared_codec,
            declared_max_payload,
            task_defaults(executor, permissions, defaults),
            call_defaults=calls_only(defaults or {}),
            middleware=check_middleware(middleware, "middleware"),
            enqueue_middleware=check_middleware(enqueue_middleware, "enqueue_middleware"),
        )
        self._context.queue = self

    def _default_url(self) -> str:
        """The store of a queue that names none."""
        return os.environ.get("JQ_URL") or DEFAULT_URL

    def __repr__(self) -> str:
        known = vars(self._context).get("qname")  # asking for it may ask a jq-server
        return f"<Queue {self.name!r} of tenant {known.tenant if known else '?'!r}>"

    @property
    def tenant(self) -> str:
        """The tenant that the queue belongs to."""
        return self._context.qname.tenant

    @property
    def url(self) -> str:
        """The URL of the store that keeps the queue's jobs."""
        return self._context.url

    @property
    def codec(self) -> Codec:
        """What arguments and results are encoded with."""
        return self._context.codec

    @property
    def max_payload(self) -> int:
        """How many bytes the encoded arguments or result of a job may take."""
        return self._context.max_payload

    @property
    def config(self) -> QueueConfig | None:
        """What the constructor declares; None if that is nothing."""
        return self._context.config

    @property
    def tasks(self) -> dict[str, TaskHandler]:
        """The queue's tasks by name, as workers run them."""
        return self._context.tasks

    @property
    def clock(self) -> Clock | None:
        """The clock of `jobq.testing`; None: the store's own."""
        return self._context.clock

    # ── opening and closing ───────────────────────────────────────────────────────────────────────

    async def __aenter__(self) -> Self:
        """Open the queue and store what the constructor declares."""
        await self._context.connection.enter()
        return self

    async def __aexit__(
        self, t: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        """Close the queue at the end of the outermost block, unless it was in use before."""
        await self._context.connection.leave()

    async def aclose(self) -> None:
        """Close the queue in this event loop. Its next use opens it again.

        Stored jobs stay, and workers continue: each has its own handle. Calls that wait for a job
        of this queue in this event loop raise QueueClosed."""
        await self._context.connection.aclose()

    # ── tasks ─────────────────────────────────────────────────────────────────────────────────────

    @overload
    def task(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTask[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def task(self, fn: Callable[P, R], /) -> PlainTask[P, R]: ...
    @overload
    def task(self, **options: Unpack[TaskOptions]) -> TaskDecorator: ...
    def task(
        self, fn: Callable[..., Any] | None = None, **options: Any
    ) -> Any:  # no `/`: mypy would see a clash with options
        """Make a task of a function: `@queue.task`, or `@queue.task(retry=5, timeout=30)`.

        `async def` functions run in the worker's event loop, `def` functions in a thread.
        """
        given = cast("TaskOptions", options)
        if fn is None:
            return TaskDecorator(self._context, given)
        return make_task(self._context, fn, given)

    def include(self, tasks: Tasks) -> None:
        """Bind tasks that were declared apart from their queue, with `Tasks()`."""
        if not isinstance(tasks, Tasks):
            raise ConfigError(f"include({shown(tasks)}): give it a Tasks object")
        tasks._include_in(self._context, sys._getframe(1).f_globals.get("__name__", "?"))

    def batch_task(
        self, *, size: int, window: Seconds = 0, **options: Unpack[TaskOptions]
    ) -> BatchDecorator:
        """Make a batch task of a function: one call for up to `size` jobs, gathered for `window`.

        The function takes a list of items and returns a list with one result per item. An exception
        in that list fails its own job; an exception that is raised fails all of them. A batch is
        never larger than the worker's concurrency.
        """
        return BatchDecorator(self._context, size, window, options)

    def command(
        self,
        name: str,
        argv: Sequence[str],
        /,
        *,
        env: Sequence[str] = (),
        **options: Unpack[TaskOptions],
    ) -> Task[..., Any]:
        """Make a task of a program: `queue.command("thumbnail", ["./thumb", "{path}"])`.

        An argument in braces is replaced by the job's argument of that name. All arguments are
        written to the program's standard input as a JSON object. Its result is what it writes to
        its standard output, or to descriptor 3, as JSON. It gets the variables PATH, LANG and TZ,
        and those that `env` names.
        """
        return make_command(self._context, name, argv, env, options)

    def task_by_name(self, name: str, **options: Unpack[JobOptions]) -> Task[..., Any]:
        """A task known only by its name, for producers that cannot import its function."""
        definition = Definition(checks.check_task_name(name))
        defaults = NOTHING.with_options(self._context.call_defaults)
        return Task(self._context, definition, defaults.with_options(options))

    # ── jobs ──────────────────────────────────────────────────────────────────────────────────────

    def job(self, id: str) -> Job[Any]:
        """A handle on the job of that id. The store is not asked yet, so there may be no such
        job."""
        return Job(self._context, checks.check_id(id))

    async def enqueue_many(self, calls: Iterable[Call[Any]]) -> list[Job[Any]]:
        """Enqueue any mix of calls, made by `task.bind(…)`, in chunks. A generator is read as it
        goes.

        If `max_waiting` is reached, every remaining call is still tried, and then QueueFull is
        raised: its `accepted` has the handles of stored jobs."""
        return await put_all(self._context, self._new_jobs(calls))

    def flow(self, *, id: str | None = None) -> Flow:
        """Jobs that wait for other jobs, stored all together or not at all:
        `async with queue.flow() as flow`."""
        return Flow(self._context, id)

    def events(self, *, after: str | None = None, follow: bool = True) -> EventStream:
        """The events of the queue and its jobs.

        `after`: an event's `position`; "0" for all that are kept; None for those from now on. With
        `follow` (the default) the stream never ends. Without it, the stream ends with the last
        event that was there when reading began."""
        return EventStream(self._context, after, follow)

    @property
    def sync(self) -> SyncQueue:
        """The same queue with blocking methods."""
        return SyncQueue(self)

    def _new_jobs(self, calls: Iterable[Call[Any]]) -> Iterator[NewJob]:
        """The jobs of these calls, for `put_all`."""
        for n, call in enumerate(calls):
            if not isinstance(call, Call):
                raise InvalidJob(
                    f"call {n}: {shown(call)} is not a call: make one with task.bind(…)"
                )
            task, spec = call._task, call._spec
            if spec.queue != self.qname:
                raise InvalidJob(
                    f"call {n}: {call!r} belongs to queue {spec.queue.queue!r}, "
                    f"not to {self.name!r}"
                )
            yield task, spec, call._args, call._kwargs


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
