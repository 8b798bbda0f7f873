"""A task: a function that can be enqueued. `@queue.task` makes one; options and arguments travel apart."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Self, TypeVar, Unpack, cast, overload

from msgspec.structs import replace

from jobq.api.job import Job
from jobq.api.options import NOTHING, JobOptions, Resolved, TaskOptions, resolve_task
from jobq.api.schedule import planned
from jobq.api.task_handler import TaskHandler, runs_async
from jobq.client import waiting
from jobq.client.ids import new_id
from jobq.core import checks
from jobq.core.bounds import queue_full
from jobq.core.calls import ArgumentDecoder, CallShape, is_plain
from jobq.core.checks import shown
from jobq.core.codec import Codec, get_codec
from jobq.core.records import Edge, JobKey, JobSpec, PutResult, QueueName
from jobq.core.refs import mark
from jobq.core.unique import debounce_ms, unique_spec
from jobq.engine.builtin import GATHER, unmarked
from jobq.errors import ConfigError, InvalidJob, QueueFull

if TYPE_CHECKING:
    from jobq.api.queue import Queue
    from jobq.api.sync import SyncTask

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Definition:
    """What all copies of a task share: its name and, where it is known, its function."""

    def __init__(self, name: str, fn: Callable[..., Any] | None = None) -> None:
        self.name = name
        self.fn = fn
        self.shape = None if fn is None else CallShape(fn, name)
        self.decoder = None if fn is None else ArgumentDecoder(fn, name)
        self._returns: Any = None

    @property
    def returns(self) -> Any:
        """The annotation of the result, looked up at the first use; Any where plain values are all it takes."""
        if self._returns is None:
            self._returns = self._look_up()
        return self._returns

    def _look_up(self) -> Any:
        if self.decoder is None:
            return Any
        try:
            self.decoder.resolve()
        except (
            ConfigError
        ):  # a parameter's annotation: the worker says so, reading results does not need it
            return Any
        return Any if is_plain(self.decoder.returns) else self.decoder.returns

    def decode(self, codec: str, data: bytes) -> Any:
        """A result, as the return annotation says."""
        return get_codec(codec).decode(data, self.returns)

    def bound(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
        """The arguments by name; of a task known by name only, those that were given by name, the others by place."""
        if self.shape is not None:
            return self.shape.bound(args, kwargs)
        return {**{str(place): value for place, value in enumerate(args)}, **kwargs}


class Gathered(Definition):
    """Of the job whose result is a list of results of one task (see `group`)."""

    def __init__(self, each: Definition) -> None:
        super().__init__(GATHER)
        self._each = each

    def decode(self, codec: str, data: bytes) -> Any:
        """Each as the task's return annotation says; failed ones, by policy `continue`, as the Failure they were."""
        return [
            unmarked(item, self._each.returns) for item in get_codec(codec).decode(data, list[Any])
        ]


Wanted = tuple["Task[..., Any]", JobSpec]
"""A job to be put, and the task that makes its handle."""


class Call(Generic[R_co]):
    """One job, ready to be enqueued: made by `task.bind(…)` for `queue.enqueue_many`.

    Its id is fixed already, so enqueueing the same Call again (after StoreUnavailable, say) does not add a second job.
    """

    __slots__ = ("spec", "task")

    def __init__(self, task: Task[..., R_co], spec: JobSpec) -> None:
        self.task = task
        self.spec = spec

    def __repr__(self) -> str:
        return f"<Call {self.spec.name} {self.spec.id!r}>"


class Task(Generic[P, R]):
    """A function of a queue. Also what `options(…)` returns: a light copy that carries them."""

    name: str
    queue: Queue
    definition: Definition

    def __init__(self, queue: Queue, definition: Definition, options: Resolved = NOTHING) -> None:
        self.name = definition.name
        self.queue = queue
        self.definition = definition
        self._use(options)

    def _use(self, options: Resolved) -> None:
        """Work out beforehand all of a spec that does not depend on the call."""
        fields = {
            "queue": self.queue.qname,
            "name": self.name,
            "codec": self.queue.codec.name,
            **options.fields,
        }
        self._options = options
        self._id: str | None = fields.pop("id", None)
        self._like = JobSpec(id="", payload=b"", **fields)
        self._plain = self._id is None and options.unique is None and options.key_parameter is None
        self._encode = self.queue.codec.encode_call
        self._check = None if self.definition.shape is None else self.definition.shape.check

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} of queue {self.queue.name!r}>"

    def options(self, **options: Unpack[JobOptions]) -> Self:
        """The same task with options for its calls. InvalidJob names one that is unknown or has a bad value."""
        copy = object.__new__(type(self))
        copy.__dict__.update(self.__dict__)
        copy._use(self._options.with_options(options))
        return copy

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Accept a job. Calls made while a put is in flight ride together in the next. QueueFull: `max_waiting` is reached."""
        spec = self.spec(args, kwargs)
        queue = self.queue
        session = queue.session_here() or await queue.session()
        return self.handle(await session.sender.put(spec))

    async def call(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Enqueue, wait, and answer with the result. Raises what `Job.result` does.

        It waits 30 seconds, or as long as `options(wait=…)` says; WaitTimeout leaves the job to go on.
        """
        spec = self.spec(args, kwargs)
        session = await self.queue.session()
        result, record = await waiting.put_and_wait(
            session, spec, self.queue.deadlines.new(self._options.wait_ms)
        )
        return self.handle(result).outcome(record)

    async def enqueue_many(
        self, calls: Iterable[tuple[Any, ...] | Mapping[str, Any]]
    ) -> list[Job[R]]:
        """Accept many jobs, in chunks; each call is a tuple of arguments or a mapping of named ones.

        A generator is read as it goes. A call that is refused leaves the chunks before its own accepted; InvalidJob says
        which it was. Where the queue's `max_waiting` is reached, each job is judged for itself, to the last call, and then
        QueueFull is raised: its `accepted` holds the handles of the jobs that were stored.
        """
        return await self.queue.put(self.wanted(calls))

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """A call for `queue.enqueue_many`, which takes any mix of tasks and options."""
        return Call(self, self.spec(args, kwargs))

    async def broadcast(
        self, queues: Sequence[Queue], *args: P.args, **kwargs: P.kwargs
    ) -> list[Job[R]]:
        """The same call into several queues, each of which has a task of this name.

        Stored in one after the other: where a store refuses it, the queues before have theirs (QueueFull has their handles
        in `accepted`). With an id, repeating it is safe.
        """
        for queue in queues:
            if not hasattr(queue, "qname"):
                raise InvalidJob(f"broadcast to {shown(queue)}: it is not a Queue")
        copies = [Task[P, R](queue, self.definition, self._options) for queue in queues]
        specs = [
            copy.spec(args, kwargs) for copy in copies
        ]  # all are checked before the first is stored
        jobs: list[Job[R]] = []
        for copy, spec in zip(copies, specs, strict=True):
            try:
                jobs += await copy.queue.put([(copy, spec)])
            except QueueFull as full:
                raise queue_full(full.queue, full.max_waiting, accepted=jobs) from None
        return jobs

    @property
    def sync(self) -> SyncTask[P, R]:
        """The same task with blocking methods."""
        from jobq.api.sync import SyncTask

        return SyncTask(self)

    # ── for queues ────────────────────────────────────────────────────────────────────────────────

    def wanted(self, calls: Iterable[tuple[Any, ...] | Mapping[str, Any]]) -> Iterator[Wanted]:
        """What `Queue.put` takes, from the arguments of each call."""
        if not isinstance(calls, Iterable):
            raise InvalidJob(
                f"enqueue_many({shown(calls)}): give a list of calls, each a tuple or a mapping of arguments"
            )
        for n, call in enumerate(calls):
            if n == 1 and self._id is not None:
                raise InvalidJob(
                    f"id={self._id!r} with more than one call: they would all be the same job"
                )
            try:
                yield (
                    self,
                    self.spec(call, _NO_NAMES)
                    if type(call) is tuple
                    else self.spec(*_arguments(call)),
                )
            except InvalidJob as error:
                raise type(error)(f"call {n}: {error}") from error

    def handle(self, result: PutResult) -> Job[R]:
        """The handle of what was put. QueueFull if it was refused."""
        if not result.duplicate:
            if result.full is not None:
                raise queue_full(self.queue.name, result.full)
            return Job(self.queue, result.id, self.name, result.life, self.definition)
        found = result.found
        if found is None:
            return Job(self.queue, result.id, self.name, result.life, self.definition, True)
        definition = (
            self.definition if found.name == self.name else None
        )  # the id may be that of another task's job
        snapshot = self.queue.job_info(found, definition)
        return Job(self.queue, result.id, found.name, result.life, definition, True, snapshot)

    def child(self, result: PutResult, id: str) -> Job[R]:
        """The handle of a child: found again under its id, it is not another's. Its life is the one it has then."""
        if result.id != id or result.full is not None:
            return self.handle(result)
        return Job(self.queue, result.id, self.name, None, self.definition)

    def spec(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> JobSpec:
        """The job of one call, checked and encoded."""
        if self._check is not None:
            self._check(args, kwargs)
        payload = self._encode(args, kwargs)
        if len(payload) > self.queue.max_payload:
            checks.check_payload(
                payload, self.queue.max_payload, f"the arguments of {self.name} take"
            )
        if self._plain:
            return replace(self._like, id=new_id(), payload=payload)
        return replace(
            self._like, id=self._id or new_id(), payload=payload, **self._per_call(args, kwargs)
        )

    def linked(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> JobSpec:
        """The same, where arguments may be other jobs' results (`job.ref`): each is an edge."""
        plain_args, plain_kwargs, refs = mark(args, kwargs)
        spec = self.spec(tuple(plain_args), plain_kwargs)
        if not refs:
            return spec
        edges = [Edge(JobKey(QueueName(self.queue.tenant, ref.queue), ref.id)) for ref in refs]
        carried = {edge.job for edge in edges}
        return replace(
            spec,
            after=(
                *dict.fromkeys(edges),
                *(edge for edge in spec.after if edge.job not in carried),
            ),
        )

    # ── inside ────────────────────────────────────────────────────────────────────────────────────

    def _per_call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The fields that follow from the arguments."""
        fields: dict[str, Any] = {}
        definition, options = self.definition, self._options
        if options.key_parameter is not None and definition.shape is not None:
            fields["key"] = checks.check_key(
                definition.shape.argument(options.key_parameter, args, kwargs)
            )
        if options.unique is not None:
            fields["unique"] = unique_spec(
                options.unique, self.name, definition.bound(args, kwargs), self.queue.codec
            )
            if (wait_ms := debounce_ms(options.unique)) and "delay_ms" not in options.fields:
                fields["delay_ms"] = wait_ms
        return fields


_NO_NAMES: Mapping[str, Any] = {}


def _arguments(call: Any) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    if isinstance(call, (tuple, list)):
        return tuple(call), {}
    if isinstance(call, Mapping):
        return (), dict(call)
    raise InvalidJob(f"{shown(call)} is neither a tuple of arguments nor a mapping of named ones")


class AsyncTask(Task[P, R]):
    """A task on `async def`. Calling it runs the function here."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """The function itself."""
        fn = cast("Callable[P, Coroutine[Any, Any, R]]", self.definition.fn)
        return fn(*args, **kwargs)


class PlainTask(Task[P, R]):
    """A task on `def`. Calling it runs the function here."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """The function itself."""
        fn = cast("Callable[P, R]", self.definition.fn)
        return fn(*args, **kwargs)


class TaskDecorator:
    """What `queue.task(**options)` returns."""

    def __init__(self, queue: Queue, options: TaskOptions) -> None:
        self._queue = queue
        self._options = options

    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTask[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, fn: Callable[P, R], /) -> PlainTask[P, R]: ...
    def __call__(self, fn: Callable[..., Any], /) -> Any:
        """Make a task of the function and register it with the queue."""
        return make_task(self._queue, fn, self._options)


def make_task(queue: Queue, fn: Callable[..., Any], options: TaskOptions) -> Task[..., Any]:
    """The task of a function, registered with the queue under its name."""
    if not callable(fn):
        raise ConfigError(f"@queue.task: {shown(fn)} is not a function; options are given by name")

    def handler(name: str, codec: Codec, options: Mapping[str, Any]) -> TaskHandler:
        return TaskHandler(name, fn, ArgumentDecoder(fn, name), codec, options)

    return publish(
        queue, fn, options, AsyncTask if runs_async(fn) else PlainTask, Definition, handler
    )


def publish(
    queue: Queue,
    fn: Callable[..., Any],
    options: TaskOptions,
    kind: type[Task[..., Any]],
    define: Callable[[str, Callable[..., Any]], Definition],
    make_handler: Callable[[str, Codec, Mapping[str, Any]], TaskHandler],
) -> Task[..., Any]:
    """Check the options, make the task and its handler, and register them with the queue."""
    resolved, of_worker = resolve_task(options)
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
    handler = make_handler(name, queue.codec, of_worker)
    handler.max_payload = queue.max_payload
    task = kind(queue, definition, resolved)
    queue.register(handler, None if handler.schedule is None else planned(handler.schedule, task))
    update_wrapper(cast("Any", task), fn, updated=())
    return task
