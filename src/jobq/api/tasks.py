"""Tasks that are declared apart from their queue, and bound to it later.

tasks = Tasks()                 # in shop/billing.py, which knows no queue

@tasks.task(retry=5)
async def charge(invoice: int) -> None: ...

queue.include(billing.tasks)    # in shop/app.py
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Mapping
from functools import update_wrapper
from typing import Any, ParamSpec, TypeVar, Unpack, cast, overload

from jobq.api.batch import BatchDecorator, BatchTask
from jobq.api.context import Definition, QueueContext
from jobq.api.dependencies import injected
from jobq.api.options import TaskOptions
from jobq.api.task import AsyncTask, PlainTask, Task, make_task
from jobq.api.task_handler import runs_async
from jobq.core.values.checks import Seconds, check_task_name, shown
from jobq.engine.handler import Handler
from jobq.errors import ConfigError

P = ParamSpec("P")
R = TypeVar("R")

_Make = Callable[[QueueContext], Task[..., Any]]


class Tasks:
    """Declares tasks like a queue. They can be enqueued once `queue.include(tasks)` was called.

    Before that they can be called directly, as functions.
    """

    def __init__(self) -> None:
        self._declared: list[tuple[Task[..., Any], _Make]] = []
        self._context: QueueContext | None = None
        self._module: str | None = None

    def __repr__(self) -> str:
        names = ", ".join(task.name for task, _ in self._declared)
        return f"<Tasks {names or '(none)'}>"

    @overload
    def task(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTask[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def task(self, fn: Callable[P, R], /) -> PlainTask[P, R]: ...
    @overload
    def task(self, **options: Unpack[TaskOptions]) -> DeclaringDecorator: ...
    def task(self, fn: Callable[..., Any] | None = None, **options: Any) -> Any:
        """Declare a task. See `Queue.task`."""
        decorator = DeclaringDecorator(self, cast("TaskOptions", options))
        return decorator if fn is None else decorator(fn)

    def batch_task(
        self, *, size: int, window: Seconds = 0, **options: Unpack[TaskOptions]
    ) -> Callable[[Callable[[list[Any]], Any]], BatchTask[Any]]:
        """Declare a batch task. See `Queue.batch_task`."""

        def declare(fn: Callable[[list[Any]], Any]) -> BatchTask[Any]:
            task: BatchTask[Any] = _unbound(BatchTask, fn, options)
            self._add(task, lambda context: BatchDecorator(context, size, window, options)(fn))
            return task

        return declare

    def _add(self, task: Task[..., Any], make: _Make) -> None:
        self._declared.append((task, make))
        if self._context is not None:
            self._bind(task, make, self._context)

    def _include_in(self, context: QueueContext, module: str) -> None:
        """Bind the tasks to a queue. Child processes import `module`, which does so."""
        bound = self._context
        if bound is not None and bound.qname != context.qname:
            raise ConfigError(
                f"{self!r} belong to queue {bound.name!r} already, and cannot be included in "
                f"{context.name!r} too: declare them once per queue"
            )
        self._context, self._module = context, module
        for task, make in self._declared:
            self._bind(task, make, context)

    def _bind(self, task: Task[..., Any], make: _Make, context: QueueContext) -> None:
        before = set(context.tasks)
        made = make(context)
        task.__dict__.update(made.__dict__)
        for name in {made.name, *(set(context.tasks) - before)}:  # also under its old names
            context.tasks[name].imports = self._module


class DeclaringDecorator:
    """What `tasks.task(**options)` returns."""

    def __init__(self, tasks: Tasks, options: TaskOptions) -> None:
        self._tasks = tasks
        self._options = options

    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTask[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, fn: Callable[P, R], /) -> PlainTask[P, R]: ...
    def __call__(self, fn: Callable[..., Any], /) -> Any:
        """Declare a task of the function."""
        if not callable(fn):
            raise ConfigError(
                f"@tasks.task: {shown(fn)} is not a function; options are given by name"
            )
        options = self._options
        task: Task[..., Any] = _unbound(AsyncTask if runs_async(fn) else PlainTask, fn, options)
        self._tasks._add(task, lambda context: make_task(context, fn, options))
        return task


def _unbound(kind: type[Any], fn: Callable[..., Any], options: TaskOptions) -> Any:
    """A task without a queue. It can be called, and has a name."""
    task = object.__new__(kind)
    given = options.get("name")
    task.name = check_task_name(
        getattr(fn, "__name__", None) if given is None else given, error=ConfigError
    )
    task._definition = Definition(task.name, injected(fn, task.name))
    update_wrapper(task, fn, updated=())
    return task


# The tasks of two Queue objects that stand for the same queue, as one mapping.


class MergedTasks(Mapping[str, Handler]):
    """The tasks of two Queue objects for the same queue. Tasks added later are found too; if both
    have a task of the same name, the first one counts."""

    def __init__(self, first: Mapping[str, Handler], second: Mapping[str, Handler]) -> None:
        self._first = first
        self._second = second

    def __getitem__(self, name: str) -> Handler:
        return self._first[name] if name in self._first else self._second[name]

    def __iter__(self) -> Iterator[str]:
        return iter({**self._first, **self._second})

    def __len__(self) -> int:
        return len({*self._first, *self._second})
