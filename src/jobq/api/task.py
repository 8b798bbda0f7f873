"""A task: a function whose calls can be enqueued as jobs. `@queue.task` makes one."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from functools import partial, update_wrapper
from types import MappingProxyType
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    ParamSpec,
    Protocol,
    Self,
    TypeVar,
    Unpack,
    cast,
    overload,
)

from msgspec.structs import replace

from jobq.api.context import Definition, QueueContext
from jobq.api.dependencies import injected
from jobq.api.enqueueing import Enqueueing, NewJob, put_all, put_all_blocking
from jobq.api.job import Job, SyncJob
from jobq.api.options import (
    NOTHING,
    JobOptions,
    Resolved,
    TaskOptions,
    UpgradingDecoder,
    check_aliases,
    resolve_task,
)
from jobq.api.task_handler import TaskHandler, runs_async
from jobq.client import transaction, waiting
from jobq.client.ids import new_id
from jobq.client.portal import run
from jobq.core.policies import Cron, Every
from jobq.core.records.jobs import Edge, JobKey, JobSpec, PutResult, QueueName
from jobq.core.records.queues import ScheduleSpec
from jobq.core.rules.calls import ArgumentDecoder
from jobq.core.rules.flows import extract_refs
from jobq.core.rules.limits import queue_full
from jobq.core.rules.locks import debounce_ms, unique_spec
from jobq.core.rules.new_jobs import check_schedule_id
from jobq.core.values import checks
from jobq.core.values.checks import shown
from jobq.core.values.codec import Codec
from jobq.errors import ConfigError, InvalidJob, QueueFull
from jobq.operations.schedules import template

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class HasContext(Protocol):
    """A Queue, for `Task.broadcast`."""

    @property
    def _context(self) -> QueueContext: ...


class Call(Generic[R_co]):
    """One call, ready to be enqueued: `task.bind(…)` makes it for `queue.enqueue_many`.

    Its job id is already fixed. Enqueueing the same Call twice, for example after StoreUnavailable,
    adds one job.
    """

    __slots__ = ("_args", "_kwargs", "_spec", "_task")

    def __init__(
        self,
        task: Task[..., R_co],
        spec: JobSpec,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self._task = task
        self._spec = spec
        self._args = args
        self._kwargs = kwargs

    def __repr__(self) -> str:
        return f"<Call {self._spec.name} {self._spec.id!r}>"


class Task(Generic[P, R]):
    """A function of a queue. `options(…)` returns a light copy of it that carries the options."""

    name: str

    def __init__(
        self, context: QueueContext, definition: Definition, options: Resolved = NOTHING
    ) -> None:
        self.name = definition.name
        self._context = context
        self._connection = context.connection
        self._definition = definition
        self._use(options)

    def _use(self, options: Resolved) -> None:
        """Prepare everything in a job's spec that does not depend on the call's arguments."""
        fields = {
            "queue": self._context.qname,
            "name": self.name,
            "codec": self._context.codec.name,
            **options.fields,
        }
        self._options = options
        self._id: str | None = fields.pop("id", None)
        self._like = JobSpec(id="", payload=b"", **fields)
        self._plain = self._id is None and options.unique is None and options.key_parameter is None
        self._encode = self._context.codec.for_task(self.name).encode_call
        self._check = None if self._definition.shape is None else self._definition.shape.check

    def __repr__(self) -> str:
        context: QueueContext | None = self.__dict__.get("_context")
        where = "without a queue" if context is None else f"of queue {context.name!r}"
        return f"<{type(self).__name__} {self.name} {where}>"

    if not TYPE_CHECKING:

        def __getattr__(self, name):
            """Called for attributes that are missing: a task of `Tasks` may have no queue yet."""
            if name in _OF_BOUND_TASKS:
                raise ConfigError(
                    f"task {self.name} has no queue yet: call queue.include(tasks) with the Tasks "
                    "that declare it"
                )
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def queue(self) -> str:
        """The name of the task's queue."""
        return self._context.name

    def options(self, **options: Unpack[JobOptions]) -> Self:
        """The same task with options for its calls. Raises InvalidJob, which names the option, if
        one is unknown or has a bad value."""
        return self._copy(self._options.with_options(options))

    def _with_only(self, options: Mapping[str, Any]) -> Self:
        """The same task with these options instead of its own."""
        return self._copy(self._options.with_only(options))

    def _copy(self, options: Resolved) -> Self:
        copy = object.__new__(type(self))
        copy.__dict__.update(self.__dict__)
        copy._use(options)
        return copy

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Enqueue a job and return its handle. Raises QueueFull if `max_waiting` is reached.

        Calls made while the store is busy with another put are stored together in the next one."""
        spec = self._spec(args, kwargs)
        if self._context.enqueue_middleware:
            return await Enqueueing(self, spec, args, kwargs, "enqueue").put_with(self._put)
        # As `_put` does. To await it here would cost every enqueue another coroutine.
        session = self._connection.session_here() or await self._connection.session()
        return self._handle(await transaction.put(session, spec))

    async def _put(self, spec: JobSpec) -> Job[R]:
        session = self._connection.session_here() or await self._connection.session()
        return self._handle(await transaction.put(session, spec))

    async def call(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Enqueue a job, wait for it and return its result. Raises what `Job.result` raises.

        Waits 30 seconds unless `options(call_timeout=…)` gives another time. Then it raises
        WaitTimeout, and the job continues.
        """
        spec = self._spec(args, kwargs)
        if (joined := transaction.current()) is not None:
            joined.refuse(f"{self.name}.call()")
        options = self._options
        if self._context.enqueue_middleware:
            enqueueing = Enqueueing(self, spec, args, kwargs, "call")
            spec = await enqueueing.revised()
            options = options.with_only(enqueueing.request.options)
        connection = self._connection
        session = await connection.session()
        result, record = await waiting.put_and_wait(
            session, spec, connection.deadlines.new(options.call_timeout_ms)
        )
        return self._handle(result)._outcome(record)

    async def enqueue_many(
        self, calls: Iterable[tuple[Any, ...] | Mapping[str, Any]]
    ) -> list[Job[R]]:
        """Enqueue many jobs in chunks. A call is a tuple of arguments or a mapping of named ones.

        A generator is read as it goes. If a call is invalid, InvalidJob says which one; the chunks
        before it are already stored. If the queue reaches `max_waiting`, every remaining call is
        still tried, and then QueueFull is raised: its `accepted` has the handles of stored jobs.
        """
        return await put_all(self._context, self._new_jobs(calls))

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """A call for `queue.enqueue_many`, which takes any mix of tasks and options."""
        return Call(self, self._spec(args, kwargs), args, kwargs)

    async def broadcast(
        self, queues: Sequence[HasContext], *args: P.args, **kwargs: P.kwargs
    ) -> list[Job[R]]:
        """Enqueue the same call in several queues, each of which has a task of this name.

        The queues are served one after the other. If one refuses the job, those before it have
        theirs: QueueFull has their handles in `accepted`. With an `id`, it is safe to repeat.
        """
        jobs: list[Job[R]] = []
        for copy, spec in self._copies(queues, args, kwargs):
            try:
                jobs += await put_all(copy._context, [(copy, spec, args, kwargs)])
            except QueueFull as full:
                raise queue_full(full.queue, full.max_waiting, accepted=jobs) from None
        return jobs

    @property
    def sync(self) -> SyncTask[P, R]:
        """The same task with blocking methods."""
        return SyncTask(self)

    def _copies(
        self, queues: Sequence[HasContext], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> list[tuple[Task[P, R], JobSpec]]:
        """The task in each of these queues, with the job of one call. All calls are checked before
        the first job is stored."""
        contexts = [getattr(queue, "_context", None) for queue in queues]
        for queue, context in zip(queues, contexts, strict=True):
            if not isinstance(context, QueueContext):
                raise InvalidJob(f"broadcast to {shown(queue)}: it is not a Queue")
        copies = [
            Task[P, R](context, self._definition, self._options)
            for context in contexts
            if context is not None
        ]
        return [(copy, copy._spec(args, kwargs)) for copy in copies]

    # ── internal: jobs and handles ────────────────────────────────────────────────────────────────

    def _new_jobs(self, calls: Iterable[tuple[Any, ...] | Mapping[str, Any]]) -> Iterator[NewJob]:
        """The jobs of these calls, for `put_all`."""
        if not isinstance(calls, Iterable):
            raise InvalidJob(
                f"enqueue_many({shown(calls)}): give a list of calls, each a tuple or a mapping of "
                "arguments"
            )
        for n, call in enumerate(calls):
            if n == 1 and self._id is not None:
                raise InvalidJob(
                    f"id={self._id!r} with more than one call: all of them would be the same job"
                )
            try:
                args, kwargs = (call, _NO_NAMES) if type(call) is tuple else _arguments(call)
                spec = self._spec(args, kwargs)
            except InvalidJob as error:
                raise type(error)(f"call {n}: {error}") from error
            yield self, spec, args, kwargs

    def _handle(self, result: PutResult) -> Job[R]:
        """The handle of a stored job, or of the duplicate that was found. Raises QueueFull."""
        if not result.duplicate:
            if result.full is not None:
                raise queue_full(self._context.name, result.full)
            return Job(self._context, result.id, self.name, result.life, self._definition)
        context, definition, found = self._context, self._definition, result.found
        if found is None:
            return Job(context, result.id, self.name, result.life, definition, True)
        # The id may belong to a job of another task.
        known = definition if found.name == self.name else None
        snapshot = context.job_info(found, known)
        return Job(context, result.id, found.name, result.life, known, True, snapshot)

    def _child(self, result: PutResult, id: str) -> Job[R]:
        """The handle of a child. A child found under its own id is no duplicate, and the handle
        follows whichever life the child has."""
        if result.id != id or result.full is not None:
            return self._handle(result)
        return Job(self._context, result.id, self.name, None, self._definition)

    def _spec(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> JobSpec:
        """The job of one call, checked and encoded."""
        if self._check is not None:
            self._check(args, kwargs)
        payload = self._encode(args, kwargs)
        if len(payload) > self._context.max_payload:
            checks.check_payload(
                payload, self._context.max_payload, f"the arguments of {self.name} take"
            )
        if self._plain:
            return replace(self._like, id=new_id(), payload=payload)
        return replace(
            self._like, id=self._id or new_id(), payload=payload, **self._per_call(args, kwargs)
        )

    def _linked_spec(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> JobSpec:
        """Like `_spec`, but arguments may be results of other jobs (`job.ref`). Each one becomes
        an edge of the flow."""
        plain_args, plain_kwargs, refs = extract_refs(args, kwargs)
        spec = self._spec(tuple(plain_args), plain_kwargs)
        if not refs:
            return spec
        tenant = self._context.qname.tenant
        edges = [Edge(JobKey(QueueName(tenant, ref.queue), ref.id)) for ref in refs]
        carried = {edge.job for edge in edges}
        return replace(
            spec,
            after=(
                *dict.fromkeys(edges),
                *(edge for edge in spec.after if edge.job not in carried),
            ),
        )

    def _planned(self, when: Cron | Every) -> ScheduleSpec:
        """The schedule of `@queue.task(schedule=…)`. ConfigError if the function needs
        arguments."""
        try:
            return self._schedule(when, self._spec((), {}))
        except InvalidJob as error:
            raise ConfigError(
                f"task {self.name} with a schedule is called without arguments: {error}"
            ) from None

    async def _planned_within(self, when: Cron | Every) -> ScheduleSpec:
        """The same, as the enqueue middleware of the queue left it."""
        spec = await Enqueueing(self, self._spec((), {}), (), {}, "schedule").revised()
        return self._schedule(when, spec)

    def _schedule(self, when: Cron | Every, job: JobSpec) -> ScheduleSpec:
        return when.spec(
            self._context.qname, check_schedule_id(self.name), template(job, self.name)
        )

    def _per_call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The fields that depend on the arguments."""
        fields: dict[str, Any] = {}
        definition, options = self._definition, self._options
        if options.key_parameter is not None and definition.shape is not None:
            fields["key"] = checks.check_key(
                definition.shape.argument(options.key_parameter, args, kwargs)
            )
        if options.unique is not None:
            fields["unique"] = unique_spec(
                options.unique, self.name, definition.bound(args, kwargs), self._context.codec
            )
            if (delay_ms := debounce_ms(options.unique)) and "delay_ms" not in options.fields:
                fields["delay_ms"] = delay_ms
        return fields


_NO_NAMES: Mapping[str, Any] = {}
_OF_BOUND_TASKS = frozenset(
    {"_context", "_connection", "_options", "_id", "_like", "_plain", "_encode", "_check"}
)


def _arguments(call: Any) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    if isinstance(call, (tuple, list)):
        return tuple(call), {}
    if isinstance(call, Mapping):
        return (), dict(call)
    raise InvalidJob(f"{shown(call)} is neither a tuple of arguments nor a mapping of named ones")


class AsyncTask(Task[P, R]):
    """A task made from `async def`. Calling it runs the function here, without a job."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """Call the function itself."""
        fn = cast("Callable[P, Coroutine[Any, Any, R]]", self._definition.fn)
        return fn(*args, **kwargs)


class PlainTask(Task[P, R]):
    """A task made from `def`. Calling it runs the function here, without a job."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function itself."""
        fn = cast("Callable[P, R]", self._definition.fn)
        return fn(*args, **kwargs)


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


# `@queue.task`: makes a task of a function and registers it with its queue.


class TaskDecorator:
    """What `queue.task(**options)` returns."""

    def __init__(self, context: QueueContext, options: TaskOptions) -> None:
        self._context = context
        self._options = options

    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTask[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, fn: Callable[P, R], /) -> PlainTask[P, R]: ...
    def __call__(self, fn: Callable[..., Any], /) -> Any:
        """Make a task of the function and register it with the queue."""
        return make_task(self._context, fn, self._options)


def make_task(
    context: QueueContext, fn: Callable[..., Any], options: TaskOptions
) -> Task[..., Any]:
    """Make a task of a function and register it with the queue under its name."""
    if not callable(fn):
        raise ConfigError(f"@queue.task: {shown(fn)} is not a function; options are given by name")
    fn = injected(fn, str(options.get("name") or getattr(fn, "__name__", "task")))

    def handler(name: str, codec: Codec, options: Mapping[str, Any]) -> TaskHandler:
        return TaskHandler(name, fn, ArgumentDecoder(fn, name), codec, options)

    return publish(
        context, fn, options, AsyncTask if runs_async(fn) else PlainTask, Definition, handler
    )


def publish(
    context: QueueContext,
    fn: Callable[..., Any],
    options: TaskOptions,
    kind: type[Task[..., Any]],
    define: Callable[[str, Callable[..., Any]], Definition],
    make_handler: Callable[[str, Codec, Mapping[str, Any]], TaskHandler],
) -> Task[..., Any]:
    """Check the options, make the task and its handler, and register them with the queue."""
    defaults = dict(context.task_defaults)
    if "at" in options:
        defaults.pop("delay", None)
    resolved, of_worker = resolve_task({**defaults, **options})
    given = of_worker.get("name")
    name = checks.check_task_name(
        getattr(fn, "__name__", None) if given is None else given, error=ConfigError
    )
    definition = define(name, fn)
    assert definition.shape is not None
    if resolved.key_parameter is not None:
        definition.shape.check_parameter(resolved.key_parameter, "key")
    if resolved.unique is not None:
        for field in resolved.unique.fields:
            definition.shape.check_parameter(field, "Unique field")
    aliases = check_aliases(of_worker.get("aliases"), name)
    handler = make_handler(name, context.codec, of_worker)
    handler.max_payload = context.max_payload
    task = kind(context, definition, resolved)
    context.register(handler, None if handler.schedule is None else task._planned(handler.schedule))
    if handler.schedule is not None and context.enqueue_middleware:
        context.planners[name] = partial(task._planned_within, handler.schedule)
    for alias, upgrade in aliases.items():
        old = make_handler(alias, context.codec, of_worker)
        old.max_payload = context.max_payload
        if upgrade is not None:
            old.decode_with(UpgradingDecoder(upgrade, alias, definition.shape))
        context.register(old)
    update_wrapper(cast("Any", task), fn, updated=())
    return task
