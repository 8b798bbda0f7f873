"""Middleware around runs: `Queue(middleware=[…])` and `Worker(middleware=[…])`.

async def timed(job: CurrentJob, call_next: CallNext) -> object:
    start = time.monotonic()
    try:
        return await call_next(job)
    finally:
        log.info("%s took %.3f s", job.name, time.monotonic() - start)
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, Protocol

from jobq.api.current import CurrentJob
from jobq.api.task_handler import runs_async
from jobq.core.checks import shown
from jobq.core.control import WaitForChildren, WaitForSignal
from jobq.engine.around import Around
from jobq.engine.handler import Handler
from jobq.engine.run import Run
from jobq.errors import ConfigError


class CallNext(Protocol):
    """Runs the rest: the next middleware, or the handler. Returns the handler's result."""

    def __call__(self, job: CurrentJob | None = None, /) -> Awaitable[Any]:
        """Can be awaited once. The argument is optional and changes nothing."""
        ...


Middleware = Callable[[CurrentJob, CallNext], Coroutine[Any, Any, object]]
"""`async def middleware(job, call_next)`. What it returns is the job's result; what it raises, the
run has raised."""


def check_middleware(given: Iterable[Any] | None, option: str) -> tuple[Any, ...]:
    """The middleware as a tuple. ConfigError names one that is not an async function."""
    if given is None:
        return ()
    if callable(given) or isinstance(given, str) or not isinstance(given, Iterable):
        raise ConfigError(f"{option}={shown(given)} is not a list of functions")
    functions = tuple(given)
    for function in functions:
        if not callable(function) or not runs_async(function):
            raise ConfigError(
                f"{option}: {shown(function)} is not an async function; write "
                f"`async def {option}(…, call_next)`, also around plain functions"
            )
    return functions


class WorkerMiddleware:
    """The middleware of a worker: its own, and inside that the middleware of each task's queue."""

    def __init__(self, of_worker: Sequence[Middleware] = ()) -> None:
        self._of_worker = tuple(of_worker)
        self._known: dict[Handler, Around | None] = {}

    def __bool__(self) -> bool:
        """Whether the worker has middleware of its own."""
        return bool(self._of_worker)

    def __call__(self, handler: Handler) -> Around | None:
        """What is called around this handler. None: nothing is."""
        try:
            return self._known[handler]
        except KeyError:
            layers = (*self._of_worker, *getattr(handler, "middleware", ()))
            around = self._known[handler] = (
                MiddlewareChain(layers, handler.name) if layers else None
            )
            return around


class MiddlewareChain:
    """Calls the middleware around a run, the first of the list outermost."""

    def __init__(self, layers: Sequence[Middleware], task: str) -> None:
        self._layers = tuple(reversed(layers))
        self._task = task

    async def __call__(self, runs: Sequence[Run], call: Callable[[], Awaitable[Any]]) -> Any:
        """Return the result of the outermost middleware."""
        job = CurrentJob(runs[0])
        core = _Core(call)
        step: CallNext = core
        for layer in self._layers:
            step = _Layer(layer, job, step)
        try:
            value = await step()
        except Exception as error:
            if error is not core.error:
                error.add_note(f"raised by the middleware around task {self._task}")
            raise
        if isinstance(core.error, (WaitForChildren, WaitForSignal)):
            raise core.error  # a middleware has caught it, but the handler has not finished
        return value


class _Layer:
    """One middleware of one run: what the middleware outside of it calls."""

    __slots__ = ("_job", "_middleware", "_next", "_used")

    def __init__(self, middleware: Middleware, job: CurrentJob, next: CallNext) -> None:
        self._middleware = middleware
        self._job = job
        self._next = next
        self._used = False

    def __call__(self, job: CurrentJob | None = None, /) -> Awaitable[Any]:
        if self._used:
            raise _called_twice()
        self._used = True
        return self._middleware(self._job, self._next)


class _Core:
    """Calls the handler, and remembers the error that it raised."""

    __slots__ = ("_call", "_used", "error")

    def __init__(self, call: Callable[[], Awaitable[Any]]) -> None:
        self._call = call
        self._used = False
        self.error: BaseException | None = None

    async def __call__(self, job: CurrentJob | None = None, /) -> Any:
        if self._used:
            raise _called_twice()
        self._used = True
        try:
            return await self._call()
        except BaseException as error:
            self.error = error
            raise


def _called_twice() -> ConfigError:
    return ConfigError(
        "call_next was called twice: a run calls its handler once. To run the job again, raise "
        "Retry.after(…) or Snooze(…)"
    )
