"""Keeps the worker running when a handler's child task raises KeyboardInterrupt or SystemExit.

asyncio lets these two errors out of its event loop. The loop would stop, and the worker could
neither settle its runs nor release its jobs. So while a worker runs, a task factory wraps each task
that is created inside a handler. The wrapper reports the error to the run of that handler, and
cancels the task instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextvars import ContextVar
from functools import partial
from typing import Any

from jobq.engine.run import Run
from jobq.executors.running import running

in_batch: ContextVar[Run] = ContextVar("jobq_in_batch")
"""A run of the batch whose handler runs here. `running` is not set: a batch has no current job."""


class _Guarded(Coroutine[Any, Any, Any]):
    """Reports KeyboardInterrupt and SystemExit of a coroutine, and raises CancelledError instead.

    An `async def` wrapper would not do: if its task is cancelled before the first step, the wrapper
    never awaits the handler's coroutine, and Python warns about that.
    """

    __slots__ = ("_coroutine", "_run")

    def __init__(self, coroutine: Coroutine[Any, Any, Any], run: Run) -> None:
        self._coroutine = coroutine
        self._run = run

    def send(self, value: Any) -> Any:
        """See Coroutine."""
        try:
            return self._coroutine.send(value)
        except (KeyboardInterrupt, SystemExit) as error:
            self._run.runner.interrupts.exited(self._run, error)
            raise asyncio.CancelledError from error

    def throw(self, *error: Any) -> Any:
        """See Coroutine."""
        try:
            return self._coroutine.throw(*error)
        except (KeyboardInterrupt, SystemExit) as raised:
            self._run.runner.interrupts.exited(self._run, raised)
            raise asyncio.CancelledError from raised

    def close(self) -> None:
        """See Coroutine."""
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._coroutine.__await__()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._coroutine, name)  # __name__, cr_frame and others, which asyncio prints


class _GuardingFactory:
    """The task factory of an event loop in which workers run."""

    def __init__(self, before: Callable[..., Any] | None) -> None:
        self.before = before
        self.users = 1

    def __call__(
        self, loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any
    ) -> asyncio.Future[Any]:
        run = running.get(None) or in_batch.get(None)
        if isinstance(run, Run) and asyncio.iscoroutine(coroutine):
            coroutine = _Guarded(coroutine, run)
        if self.before is not None:
            return self.before(loop, coroutine, **options)  # type: ignore[no-any-return]
        return asyncio.Task(coroutine, loop=loop, **options)


def guard(loop: asyncio.AbstractEventLoop) -> None:
    """Wrap the tasks that handlers create in this event loop. Undone by as many `unguard` calls."""
    factory: Any = loop.get_task_factory()
    if isinstance(factory, _GuardingFactory):
        factory.users += 1
    else:
        loop.set_task_factory(_GuardingFactory(factory))


def unguard(loop: asyncio.AbstractEventLoop) -> None:
    """Restore the task factory from before, unless the application has set another meanwhile."""
    factory: Any = loop.get_task_factory()
    if isinstance(factory, _GuardingFactory):
        factory.users -= 1
        if not factory.users:
            loop.set_task_factory(factory.before)


def unguarded(loop: asyncio.AbstractEventLoop) -> Callable[..., asyncio.Task[None]]:
    """Return a faster `loop.create_task` for tasks of the engine, which need no guard."""
    factory: Any = loop.get_task_factory()
    if isinstance(factory, _GuardingFactory):
        factory = factory.before
    return partial(asyncio.Task, loop=loop) if factory is None else partial(factory, loop)
