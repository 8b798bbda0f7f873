"""TaskHandler: a task as workers see it, with its function, executor, retry policy and codec."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jobq.core.policies import UNDECLARED, Cron, Every, Permissions, Retry
from jobq.core.records.jobs import Lease
from jobq.core.rules.calls import ArgumentDecoder, undecoded
from jobq.core.rules.outcomes import DEFAULT_MAX_STALLS
from jobq.core.values import checks
from jobq.core.values.checks import shown
from jobq.core.values.codec import Codec, NotHere, get_codec
from jobq.engine.handler import EXECUTORS, RESULT, BatchSize, ExecutorName, unstorable
from jobq.errors import ConfigError, UnfitArguments


class TaskHandler:
    """What the engine runs (fits `engine.handler.Handler`). `@queue.task` makes it from the options
    that live in worker code."""

    batch: BatchSize | None = None
    framework: str | None = None  # a module that child processes import before the task's
    imports: str | None = None  # a module that child processes import to find the task
    middleware: Sequence[Any] = ()  # around each run; set by the queue

    def __init__(
        self,
        name: str,
        fn: Callable[..., Any],
        decoder: ArgumentDecoder,
        codec: Codec,
        options: Mapping[str, Any],
    ) -> None:
        self.name = name
        self.fn = fn
        self.executor = _executor(name, fn, options.get("executor"))
        self.retry = Retry.of(options.get("retry", UNDECLARED))
        self.timeout_ms = checks.check_timeout(options.get("timeout")) or None
        self.grace_ms = checks.check_grace(options.get("grace"))
        self.max_stalls = checks.check_max_stalls(options.get("max_stalls", DEFAULT_MAX_STALLS))
        self.schedule: Cron | Every | None = _instance(options, "schedule", (Cron, Every))
        self.permissions: Permissions | None = _instance(options, "permissions", (Permissions,))
        self._decoder = decoder
        self._codec = codec
        self._call_codec = codec.for_task(name)
        self._dependencies: frozenset[str] = getattr(fn, "dependencies", frozenset())
        self.max_payload: int | None = None  # bytes that a result may take; set by the queue

    def __repr__(self) -> str:
        return f"<TaskHandler {self.name} ({self.executor})>"

    def decode_with(self, decoder: ArgumentDecoder) -> None:
        """Decode arguments in another way, for jobs of an earlier version of the task."""
        self._decoder = decoder

    def bind(self, lease: Lease, /) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """Decode the job's arguments to the function's annotations. Raises UnfitArguments if they
        do not fit, and UndecodableArguments if they are none."""
        args, kwargs = self._decoder.decode(lease.payload, self._call_codec_of(lease), lease.inputs)
        if self._dependencies and not self._dependencies.isdisjoint(kwargs):
            names = ", ".join(sorted(self._dependencies.intersection(kwargs)))
            raise UnfitArguments(f"{names}: a dependency of task {self.name} cannot be an argument")
        return args, kwargs

    def encode(self, value: Any, lease: Lease, /, what: str = RESULT) -> bytes:
        """Encode a result with the codec of its job, which is what readers decode it with.

        A result that cannot be encoded, or is larger than `max_payload`, raises UnstorableResult,
        which names the part of it that is at fault."""
        try:
            data = self._codec_of(lease).encode(value)
            if self.max_payload is not None and len(data) > self.max_payload:
                checks.check_payload(data, self.max_payload, f"{what} of {self.name} takes")
            return data
        except Exception as error:  # a codec of the user's may raise anything
            if what != RESULT:
                raise
            raise unstorable(error) from error

    def _call_codec_of(self, lease: Lease) -> Codec:
        """The codec of a job's arguments."""
        if lease.codec == self._codec.name:
            return self._call_codec
        try:
            return get_codec(lease.codec).for_task(lease.name)
        except NotHere as error:
            raise undecoded(error) from None

    def _codec_of(self, lease: Lease) -> Codec:
        """The codec of a job. It differs from the queue's if the job was enqueued before a
        change."""
        return self._codec if lease.codec == self._codec.name else get_codec(lease.codec)


def runs_async(fn: Callable[..., Any]) -> bool:
    """Whether calling `fn` returns a coroutine: `async def`, also in a partial or as `__call__`."""
    method = getattr(fn, "__call__", None)  # noqa: B004 - not whether it is callable
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(method)


def _executor(name: str, fn: Callable[..., Any], asked: object) -> ExecutorName:
    if inspect.isasyncgenfunction(fn) or inspect.isgeneratorfunction(fn):
        raise ConfigError(
            f"task {name}: {shown(fn)} is a generator function; a task returns its result"
        )
    if asked == "command":
        return "command"
    is_async = runs_async(fn)
    if asked is None:
        return "inline" if is_async else "thread"
    checks.check_choice(asked, "executor", EXECUTORS, error=ConfigError)
    if is_async and asked == "thread":
        raise ConfigError(
            f"task {name}: executor='thread' is for plain functions, and this one is async: leave "
            "executor out"
        )
    if not is_async and asked == "inline":
        raise ConfigError(
            f"task {name}: executor='inline' is for async functions; a plain function would block "
            "all other jobs of the worker: leave executor out"
        )
    return next(executor for executor in EXECUTORS if executor == asked)


def _instance(options: Mapping[str, Any], option: str, classes: tuple[type, ...]) -> Any:
    value = options.get(option)
    if value is not None and not isinstance(value, classes):
        raise ConfigError(
            f"{option}={shown(value)} is not a {' or '.join(c.__name__ for c in classes)}"
        )
    return value
