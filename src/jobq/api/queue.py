"""A queue: where tasks belong, jobs go in, and operators look. It opens its store at the first use."""

from __future__ import annotations

import asyncio
import os
from collections.abc import (
    AsyncIterator,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Literal, ParamSpec, Self, TypeVar, Unpack, cast, overload

from jobq.api import info
from jobq.api.batch import BatchDecorator
from jobq.api.event_stream import EventStream
from jobq.api.flow import Flow
from jobq.api.info import JobInfo
from jobq.api.job import Job
from jobq.api.limits import Limiting, declared_limits
from jobq.api.operations import Operations
from jobq.api.options import NOTHING, JobOptions, TaskOptions, queue_config, retention_data
from jobq.api.schedule import Scheduling
from jobq.api.sync import SyncQueue
from jobq.api.task import (
    AsyncTask,
    Call,
    Definition,
    PlainTask,
    Task,
    TaskDecorator,
    Wanted,
    make_task,
)
from jobq.api.task_handler import TaskHandler
from jobq.client.deadline import Deadlines
from jobq.client.session import CHUNK, Session, batches, close_session, open_session
from jobq.core import checks
from jobq.core.bounds import queue_full
from jobq.core.checks import Seconds, shown
from jobq.core.codec import Codec, get_codec
from jobq.core.meta import check_event_names
from jobq.core.policies import Bucket, Rate, Retention
from jobq.core.queues import ScheduleSpec
from jobq.core.records import JobRecord, JobSpec, PutResult, QueueName
from jobq.engine.clock import wall_clock
from jobq.errors import ConfigError, InvalidJob, QueueFull
from jobq.stores import open_store
from jobq.stores.base import Clock, Store

P = ParamSpec("P")
R = TypeVar("R")

DEFAULT_URL = "sqlite:///jobq.db"
DEFAULT_TENANT = "default"
DEFAULT_MAX_PAYLOAD = 1024 * 1024
MOST_PARTITIONS = 1024
"""More than there are machines to spread a queue over; a claim has to look at all of them."""
"""Bytes. A queue is not a file store: what is larger belongs elsewhere, and a job holds its address."""


class _Place:
    """Where a queue keeps its jobs, and by which clock."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.clock: Clock | None = None


class Queue(Operations, Limiting, Scheduling):
    """A named queue in the store at `url` (default: JQ_URL, else sqlite:///jobq.db).

    `async with queue:` opens and closes it; without, it opens by itself and `aclose()` closes it. It can be used from any
    number of event loops and threads, each of which gets a store handle of its own, shared among queues.
    What is declared here (mode, limits, retention, …) is stored when it opens; ConfigError if what is stored differs.
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
        max_payload: int = DEFAULT_MAX_PAYLOAD,
    ) -> None:
        self.name = checks.check_queue_name(name, "queue name", error=ConfigError)
        self.tenant = checks.check_tenant(
            tenant if tenant is not None else os.environ.get("JQ_TENANT") or DEFAULT_TENANT,
            error=ConfigError,
        )
        self.qname = QueueName(self.tenant, self.name)
        if url is not None and (not isinstance(url, str) or not url):
            raise ConfigError(
                f"url={shown(url)} is not a store URL: give a string such as {DEFAULT_URL!r}"
            )
        self._home = url or os.environ.get("JQ_URL") or DEFAULT_URL
        self._place = _Place(
            self._home
        )  # shared with the views that as_actor makes, like all that can change
        self.codec = get_codec(codec)
        self.max_payload = checks.check_int(max_payload, "max_payload", low=1, error=ConfigError)
        if mode is not None:
            checks.check_choice(mode, "mode", ("plain", "keyed"), error=ConfigError)
        if mode == "plain" and (key_limit is not None or key_rate is not None):
            raise ConfigError(
                f"queue {name!r} is plain: its jobs have no keys to limit; use mode='keyed', or limit= and rate="
            )
        self.config = queue_config(
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
                partitions, "partitions", low=1, high=MOST_PARTITIONS, error=ConfigError
            ),
            retention=retention_data(retention),
            dead_letters=None
            if dead_letters is None
            else checks.check_queue_name(dead_letters, "dead_letters", error=ConfigError),
            event_meta=None if event_meta is None else check_event_names(event_meta),
        )
        self.tasks: dict[str, TaskHandler] = {}
        """Its tasks by name, as workers run them."""
        self.planned: dict[str, ScheduleSpec] = {}
        """The schedules that its tasks were declared with, by id; workers store them when they start."""
        self.deadlines = Deadlines()
        """Those of waits for its jobs; closing the queue ends them."""
        self._sessions: dict[asyncio.AbstractEventLoop, Session] = {}
        self._entered: dict[asyncio.AbstractEventLoop, int] = {}  # contexts, nested or side by side
        self._loose: set[asyncio.AbstractEventLoop] = (
            set()
        )  # used before the first context: open until aclose()
        self._doors: dict[asyncio.AbstractEventLoop, asyncio.Lock] = {}

    @property
    def url(self) -> str:
        """The store that keeps its jobs."""
        return self._place.url

    @property
    def clock(self) -> Clock | None:
        """The clock of a test; None: the store's own."""
        return self._place.clock

    def __repr__(self) -> str:
        return f"<Queue {self.name!r} of tenant {self.tenant!r}>"

    # ── opening and closing ───────────────────────────────────────────────────────────────────────

    async def __aenter__(self) -> Self:
        """Open, and declare what the constructor was given."""
        loop = asyncio.get_running_loop()
        if not self._entered.get(loop) and loop in self._sessions:
            self._loose.add(loop)
        self._entered[loop] = self._entered.get(loop, 0) + 1
        try:
            await self.session()
        except BaseException:
            self._entered[loop] -= 1
            raise
        return self

    async def __aexit__(
        self, t: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        """Close, if this is the outermost of nested contexts and nobody used the queue before it."""
        loop = asyncio.get_running_loop()
        self._entered[loop] = max(0, self._entered.get(loop, 0) - 1)
        if not self._entered[loop] and loop not in self._loose:
            await self.aclose()

    async def aclose(self) -> None:
        """Give the store handle of this event loop back. Nothing stored changes; the next use opens it again.
        Whoever waits for a job of the queue in this event loop gets QueueClosed.

        A worker has a hold of its own on the store, and works on."""
        loop = asyncio.get_running_loop()
        self._loose.discard(loop)
        self.deadlines.close(loop)
        session = self._sessions.pop(loop, None)
        if session is not None:
            await close_session(session)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Store]:
        """Its store handle, for a worker: open for the length of the context, whoever closes the queue meanwhile."""
        async with self:
            session = await open_session(self.url, self.clock)
            try:
                yield session.store
            finally:
                await close_session(session)

    def another_handle(self) -> Store:
        """Another handle on its store, not connected yet: a worker opens one in a thread of its own."""
        return open_store(self.url, clock=self.clock)

    async def store(self) -> Store:
        """The store handle of the running event loop."""
        return (await self.session()).store

    def session_here(self) -> Session | None:
        """The session of the running event loop, if it is open."""
        return self._sessions.get(asyncio.get_running_loop())

    async def session(self) -> Session:
        """The session of the running event loop."""
        return self.session_here() or await self._open()

    async def _open(self) -> Session:
        loop = asyncio.get_running_loop()
        async with self._doors.setdefault(loop, asyncio.Lock()):
            if (session := self._sessions.get(loop)) is not None:
                return session
            self._forget_closed_loops()
            session = await open_session(self.url, self.clock)
            try:
                if self.config is not None:
                    await session.store.declare(self.qname, self.config)
            except BaseException:
                await close_session(session)
                raise
            self._sessions[loop] = session
            return session

    def now_ms(self) -> int:
        """What time it is: by the clock of a test, else by this machine's."""
        return (self.clock or wall_clock)()

    def move(self, url: str, clock: Clock | None = None) -> None:
        """Keep jobs elsewhere from now on; see `jobq.testing`. ConfigError if the queue is open."""
        self._forget_closed_loops()
        if self._sessions:
            raise ConfigError(f"queue {self.name!r} is open and cannot be moved: close it first")
        self._place.url, self._place.clock = url, clock

    async def move_back(self) -> None:
        """Close all handles, in whichever event loop, and keep jobs where they were kept before `move`."""
        sessions = dict(self._sessions)
        self._sessions.clear()
        self._entered.clear()
        self._loose.clear()
        self._place.url, self._place.clock = self._home, None
        here = asyncio.get_running_loop()
        for loop, session in sessions.items():
            if loop is here:
                await close_session(session)
            elif not loop.is_closed():
                await asyncio.wrap_future(
                    asyncio.run_coroutine_threadsafe(close_session(session), loop)
                )

    def _forget_closed_loops(self) -> None:
        for by_loop in (self._sessions, self._entered, self._doors):
            for loop in list(
                by_loop
            ):  # a copy made in one step: other threads open and close here as well
                if loop.is_closed():
                    by_loop.pop(loop, None)
                    self._loose.discard(loop)

    # ── tasks ─────────────────────────────────────────────────────────────────────────────────────

    @overload
    def task(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTask[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def task(self, fn: Callable[P, R], /) -> PlainTask[P, R]: ...
    @overload
    def task(self, **options: Unpack[TaskOptions]) -> TaskDecorator: ...
    def task(
        self, fn: Callable[..., Any] | None = None, **options: Any
    ) -> Any:  # no `/`: mypy then sees a clash with options
        """Make a task of a function: `@queue.task`, or `@queue.task(retry=5, timeout=30)`.

        `async def` runs in the worker's event loop, `def` in a thread.
        """
        given = cast("TaskOptions", options)
        return TaskDecorator(self, given) if fn is None else make_task(self, fn, given)

    def batch_task(
        self, *, size: int, linger: Seconds = 0, **options: Unpack[TaskOptions]
    ) -> BatchDecorator:
        """Make a batch task of a function: one call for up to `size` jobs, which it waits for up to `linger`.

        The function takes the list of their items and answers a list with one result per item, where an exception fails
        that job alone; raised, it fails all of them. A worker gathers no more than its concurrency.
        """
        return BatchDecorator(self, size, linger, options)

    def named(self, name: str, **options: Unpack[JobOptions]) -> Task[..., Any]:
        """A task known by its name only, for producers that cannot import the handler."""
        return Task(self, Definition(checks.check_task_name(name)), NOTHING.with_options(options))

    def register(self, handler: TaskHandler, schedule: ScheduleSpec | None = None) -> None:
        """Have workers of this queue run jobs of that name, and store its schedule. ConfigError if another function has it."""
        known = self.tasks.get(handler.name)
        if known is not None and _place(known.fn) != _place(
            handler.fn
        ):  # the same place again: a module was reloaded
            raise ConfigError(
                f"queue {self.name!r} has a task {handler.name!r} already, {_place(known.fn)}: "
                f"give {_place(handler.fn)} a name= of its own"
            )
        self.tasks[handler.name] = handler
        self.planned.pop(handler.name, None)
        if schedule is not None:
            self.planned[handler.name] = schedule

    # ── jobs ──────────────────────────────────────────────────────────────────────────────────────

    def job(self, id: str) -> Job[Any]:
        """A handle on the job of that id. Nothing is asked yet, so it may not be there."""
        return Job(self, checks.check_id(id))

    async def enqueue_many(self, calls: Iterable[Call[Any]]) -> list[Job[Any]]:
        """Accept any mix of calls, made by `task.bind(…)`, in chunks. A generator is read as it goes.

        QueueFull, once all were judged, if `max_waiting` is reached; its `accepted` holds the handles of those stored."""
        return await self.put(self.wanted(calls))

    def flow(self, *, id: str | None = None) -> Flow:
        """Jobs that wait for jobs, submitted whole or not at all: `async with queue.flow() as flow`."""
        return Flow(self, id)

    def events(self, *, after: str | None = None, follow: bool = True) -> EventStream:
        """What happens to the queue and its jobs. After a `position`; None: from now on; "0": all that is kept.

        With `follow`, which is the default, it never ends; without, it ends with what was there when reading began."""
        return EventStream(self, after, follow)

    @property
    def sync(self) -> SyncQueue:
        """The same queue with blocking methods."""
        return SyncQueue(self)

    # ── for tasks and handles ─────────────────────────────────────────────────────────────────────

    async def put(self, wanted: Iterable[Wanted]) -> list[Job[Any]]:
        """Put specs in bounded calls, reading `wanted` as it goes; a handle for each, in their order.

        QueueFull, when all were judged, if some were refused; it has the handles of the others."""
        session = await self.session()
        chunks = batches(wanted, CHUNK)
        chunk = next(chunks, None)
        specs = _prepared(session, chunk)
        jobs: list[Job[Any]] = []
        refused: list[int] = []
        accepted: tuple[list[Wanted], list[PutResult]] = ([], [])
        while chunk is not None:
            putting = asyncio.create_task(session.sender.put_many(specs))  # awaited below
            try:
                await asyncio.sleep(
                    0
                )  # it is on its way: while the store has it, the last gets its handles and the next is made
                jobs += _handles(*accepted, refused)
                following = next(chunks, None)
                specs = _prepared(session, following)
            except asyncio.CancelledError:
                putting.cancel()
                raise
            except Exception:  # whatever is wrong with the next, this one is accepted first
                await putting
                raise
            accepted, chunk = (chunk, await putting), following
        jobs += _handles(*accepted, refused)
        if refused:
            raise queue_full(self.name, refused[-1], accepted=jobs, refused=len(refused))
        return jobs

    def wanted(self, calls: Iterable[Call[Any]]) -> Iterator[Wanted]:
        """What `put` takes, from calls of this queue."""
        for n, call in enumerate(calls):
            if not isinstance(call, Call):
                raise InvalidJob(
                    f"call {n}: {shown(call)} is not a call: make one with task.bind(…)"
                )
            if call.spec.queue != self.qname:
                raise InvalidJob(
                    f"call {n}: {call!r} belongs to queue {call.spec.queue.queue!r}, not to {self.name!r}"
                )
            yield call.task, call.spec

    def encode_call(
        self,
        definition: Definition | None,
        name: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> bytes:
        """Arguments as bytes, checked against the function where it is known, and for their size."""
        if definition is not None and definition.shape is not None:
            definition.shape.check(args, kwargs)
        what = f"the arguments of {name or 'the job'} take"
        return checks.check_payload(self.codec.encode_call(args, kwargs), self.max_payload, what)

    def decode_result(self, record: JobRecord, definition: Definition | None) -> Any:
        """The result in a record, as the task's return annotation says."""
        if record.result is None:
            return None
        decode = info.plain if definition is None else definition.decode
        return decode(record.codec, record.result)

    def job_info(self, record: JobRecord, definition: Definition | None = None) -> JobInfo:
        """A record as users see it; the result as the task's return annotation says, where it is known."""
        return info.job_info(
            record, None if definition is None else definition.decode, self.tasks.get(record.name)
        )


def _prepared(session: Session, chunk: Sequence[Wanted] | None) -> Sequence[JobSpec]:
    specs = [spec for _, spec in chunk or ()]
    return specs if session.pipeline is None or not specs else session.pipeline.prepare(specs)


def _handles(
    chunk: Sequence[Wanted], results: Sequence[PutResult], refused: list[int]
) -> list[Job[Any]]:
    """The handles of what was accepted. For each job that was not, the queue's max_waiting is added to `refused`."""
    try:
        return [task.handle(result) for (task, _), result in zip(chunk, results, strict=True)]
    except QueueFull:  # rare: nobody else pays for looking at each
        refused += [result.full for result in results if result.full is not None]
        pairs = zip(chunk, results, strict=True)
        return [task.handle(result) for (task, _), result in pairs if result.full is None]


def _place(fn: Callable[..., Any]) -> str:
    return f"{getattr(fn, '__module__', '?')}.{getattr(fn, '__qualname__', repr(fn))}"
