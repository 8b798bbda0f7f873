"""Batch tasks: one handler call for up to N jobs.

Each job is still enqueued, retried and awaited on its own.

@queue.batch_task(size=100, window=0.5)
async def index(documents: list[Document]) -> list[int | Exception]: ...

job = await index.enqueue(document)
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar, overload

from jobq.api.context import Definition, QueueContext
from jobq.api.dependencies import injected
from jobq.api.options import TaskOptions
from jobq.api.task import Task, publish
from jobq.api.task_handler import TaskHandler
from jobq.core.records.jobs import Lease
from jobq.core.rules.calls import ArgumentDecoder, CallShape, decoded, is_plain, wrong_kinds
from jobq.core.values import checks
from jobq.core.values.checks import Seconds, shown
from jobq.core.values.codec import Codec
from jobq.engine.handler import BatchSize
from jobq.errors import ConfigError, UnfitArguments

T = TypeVar("T")

MAX_BATCH = 10_000
"""Jobs that one handler call may take."""


class BatchTask(Task[[T], Any]):
    """A task whose handler takes a list of items. A call of the task has one item as argument."""

    def __call__(self, items: list[T]) -> Any:
        """Call the function itself with these items, without jobs."""
        assert self._definition.fn is not None
        return self._definition.fn(items)


class BatchDecorator:
    """What `queue.batch_task(…)` returns."""

    def __init__(
        self, context: QueueContext, size: int, window: Seconds, options: TaskOptions
    ) -> None:
        self._context = context
        self._size = BatchSize(
            size=checks.check_int(size, "size", low=1, high=MAX_BATCH, error=ConfigError),
            window_ms=checks.to_ms(window, "window", error=ConfigError),
        )
        self._options = options

    @overload
    def __call__(self, fn: Callable[[list[T]], Awaitable[Sequence[Any]]], /) -> BatchTask[T]: ...
    @overload
    def __call__(self, fn: Callable[[list[T]], Sequence[Any]], /) -> BatchTask[T]: ...
    def __call__(self, fn: Callable[..., Any], /) -> Any:
        """Make a task of the function and register it with the queue."""
        fn = injected(fn, str(self._options.get("name") or getattr(fn, "__name__", "task")))

        def handler(name: str, codec: Codec, options: Mapping[str, Any]) -> BatchHandler:
            return BatchHandler(name, fn, ArgumentDecoder(fn, name), codec, options, self._size)

        return publish(self._context, fn, self._options, BatchTask, BatchDefinition, handler)


class BatchDefinition(Definition):
    """The definition of a batch task: a call has one item, while the function takes a list."""

    def __init__(self, name: str, fn: Callable[..., Any]) -> None:
        super().__init__(name)
        _check_parameters(name, fn)
        self.fn = fn
        self.shape = CallShape(_one, name)


class BatchHandler(TaskHandler):
    """What the engine runs for a batch task."""

    def __init__(
        self,
        name: str,
        fn: Callable[..., Any],
        decoder: ArgumentDecoder,
        codec: Codec,
        options: Mapping[str, Any],
        batch: BatchSize,
    ) -> None:
        super().__init__(name, fn, decoder, codec, options)
        self.batch = batch
        self._wrong: frozenset[type] | None = None  # kinds that no item has
        self._expected = ""

    def decode_with(self, decoder: ArgumentDecoder) -> None:
        """Refuse upgraders: jobs of a batch task have one argument, whatever its name was."""
        raise ConfigError(
            f"aliases of a batch task: {self.name!r} has an upgrader. Give a list of old names, "
            "and convert old items in the task itself"
        )

    def bind(self, lease: Lease, /) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """Decode the item of one job to the function's annotation. A bad item fails its job
        only."""
        args, kwargs = decoded(lease.payload, self._call_codec_of(lease), lease.inputs)
        items = [*args, *(value for name, value in kwargs.items() if name == "item")]
        given = len(args) + len(kwargs)
        if len(items) != 1 or given != 1:
            raise UnfitArguments(
                f"a job of batch task {self.name} has one argument, its item; this one has {given}"
            )
        if self._wrong is None:
            self._wrong, self._expected = self._of_items()
        if type(items[0]) in self._wrong:
            raise UnfitArguments(f"{self._expected}, not {type(items[0]).__name__}")
        listed: list[Any] = [items]
        self._decoder.convert(listed, {})
        return listed[0], {}

    def _of_items(self) -> tuple[frozenset[type], str]:
        """The kinds that no item has, and what is expected instead."""
        self._decoder.resolve()
        name = next(iter(inspect.signature(self.fn).parameters))
        items = self._decoder.annotations.get(name, Any)
        (item, *_) = typing.get_args(items) or (Any,)
        plain = wrong_kinds(item) if is_plain(items) else frozenset[type]()
        return plain, self._decoder.expected("item", item)


def _one(item: Any) -> None:
    """The signature of a batch task's calls."""


def _check_parameters(name: str, fn: Callable[..., Any]) -> None:
    places = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = list(inspect.signature(fn).parameters.values())
    if (
        not parameters
        or parameters[0].kind not in places
        or any(p.default is p.empty for p in parameters[1:])
    ):
        raise ConfigError(
            f"batch task {name}: {shown(fn)} must take one argument, the list of items"
        )
