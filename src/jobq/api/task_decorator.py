"""`@queue.task`: makes a task of a function and registers it with its queue."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from functools import partial, update_wrapper
from typing import Any, ParamSpec, TypeVar, cast, overload

from jobq.api.aliases import UpgradingDecoder, check_aliases
from jobq.api.context import QueueContext
from jobq.api.definition import Definition
from jobq.api.dependencies import injected
from jobq.api.options import TaskOptions, resolve_task
from jobq.api.task import AsyncTask, PlainTask, Task
from jobq.api.task_handler import TaskHandler, runs_async
from jobq.core import checks
from jobq.core.calls import ArgumentDecoder
from jobq.core.checks import shown
from jobq.core.codec import Codec
from jobq.errors import ConfigError

P = ParamSpec("P")
R = TypeVar("R")


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
