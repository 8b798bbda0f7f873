"""Middleware around runs: `Queue(middleware=[…])` and `Worker(middleware=[…])`.

async def timed(job: CurrentJob, call_next: CallNext) -> object:
    start = time.monotonic()
    try:
        return await call_next(job)
    finally:
        log.info("%s took %.3f s", job.name, time.monotonic() - start)
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextvars import ContextVar
from typing import Any, Literal, NamedTuple, Protocol

import msgspec

from jobq.api.current import CurrentJob
from jobq.api.task_handler import runs_async
from jobq.core.control import WaitForChildren, WaitForSignal
from jobq.core.records.jobs import (
    AnyOutcome,
    Block,
    Complete,
    Fail,
    Failure,
    Hold,
    Release,
    RetryLater,
    SnoozeFor,
)
from jobq.core.rules.decide import End, Raised, decide
from jobq.core.values.checks import shown
from jobq.engine.handler import Around, FailedApart, Handler
from jobq.engine.run import LeaseOver, Run
from jobq.errors import ConfigError

# What the end of a run means for its job: for middleware that counts, traces or reports runs.

Outcome = Literal["completed", "retried", "failed", "snoozed", "limited", "blocked", "released"]

_OUTCOMES: dict[type[AnyOutcome], Outcome] = {
    Complete: "completed",
    RetryLater: "retried",
    Fail: "failed",
    SnoozeFor: "snoozed",
    Hold: "limited",
    Block: "blocked",
    Release: "released",
}


class Ending(msgspec.Struct, frozen=True):
    """How a run ends. `failed` is final; `released` also means cancelled, deferred because the
    arguments do not fit, or that the lease is lost."""

    outcome: Outcome
    failure: Failure | None = None  # of a run that failed, also if it is retried


def ending_of(job: CurrentJob, error: BaseException | None) -> Ending:
    """What a run that raised this error means for its job, by its retry policy. None: it returned.

    For middleware. It runs in the worker, also for tasks in child processes."""
    run = job._run
    if not isinstance(run, Run):
        raise ConfigError("ending_of is for middleware, which runs in the worker")
    if run.concluded:  # it went on after a timeout or a lost lease: how it ends changes nothing
        return _ending(run.outcome)
    if error is None:
        return Ending("completed")
    if isinstance(error, FailedApart):
        return Ending("failed" if error.final else "retried", error.failure)
    if run.handler is None or isinstance(error, LeaseOver | KeyboardInterrupt):
        return Ending("released")
    end: End = Raised(error)
    if run.end is not None and isinstance(error, asyncio.CancelledError):
        end = run.end
    outcome = decide(
        run.lease,
        end,
        retry=run.handler.retry,
        now_ms=run.now_ms,
        random=random.random,
        encode=run.save,
    )
    return _ending(outcome)


def _ending(outcome: AnyOutcome | None) -> Ending:
    """None: the lease is lost."""
    if outcome is None:
        return Ending("released")
    return Ending(_OUTCOMES.get(type(outcome), "released"), getattr(outcome, "failure", None))


class OncePerRun:
    """Lets a middleware act once in a run, also if the worker and the queue both have it."""

    def __init__(self, name: str) -> None:
        self._run: ContextVar[object] = ContextVar(name, default=None)

    def enter(self, job: CurrentJob) -> bool:
        """Whether this is the first time in this run."""
        if self._run.get() is job._run:
            return False
        self._run.set(job._run)
        return True

    def leave(self) -> None:
        """Forget the run: `is_in` is False from here on."""
        self._run.set(None)

    def is_in(self, job_id: object) -> bool:
        """Whether this context is in the run of that job, or just after it."""
        run = self._run.get()
        if not isinstance(run, Run):
            return False
        runs = [run] if run.batch is None else run.batch.runs
        return any(each.lease.id == job_id for each in runs)


class Ended(NamedTuple):
    """One job of a run, and how it ended."""

    job: CurrentJob
    ending: Ending
    error: BaseException | None


def endings_of(
    job: CurrentJob, *, result: Any = None, error: BaseException | None = None
) -> Sequence[Ended]:
    """The endings of all jobs of a run: of a batch each, else of one."""
    if not job.batch:
        return (Ended(job, ending_of(job, error), error),)
    if error is not None or not isinstance(result, list | tuple):
        return [Ended(each, ending_of(each, error), error) for each in job.batch]
    # A batch task returns one result or exception per job.
    errors = [each if isinstance(each, BaseException) else None for each in result]
    return [
        Ended(each, ending_of(each, raised), raised)
        for each, raised in zip(job.batch, errors, strict=False)
    ]


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


# Middleware made of one function: `Queue(middleware=[on_failure(alert)])`.
#
# The functions may be plain or async. They run in the worker's event loop, so a plain one must be
# short. For a batch task they are called once per job.

log = logging.getLogger("jobq")


def on_start(function: Callable[[CurrentJob], object]) -> Middleware:
    """Call `function(job)` before each run. What it raises, the run has raised."""
    _check(function, "on_start")

    async def middleware(job: CurrentJob, call_next: CallNext) -> object:
        for each in job.batch or (job,):
            await _result(function(each))
        return await call_next(job)

    return middleware


def on_success(function: Callable[[CurrentJob, Any], object]) -> Middleware:
    """Call `function(job, result)` after each run that returned. What it raises, the run has
    raised: the job fails or is retried."""
    _check(function, "on_success")

    async def middleware(job: CurrentJob, call_next: CallNext) -> object:
        result: Any = await call_next(job)
        if not job.batch:
            await _result(function(job, result))
        elif isinstance(result, list | tuple):  # else the run fails: it needs a result per job
            for each, one in zip(job.batch, result, strict=False):
                if not isinstance(one, BaseException):
                    await _result(function(each, one))
        return result

    return middleware


def on_failure(
    function: Callable[[CurrentJob, BaseException], object], *, final: bool = False
) -> Middleware:
    """Call `function(job, error)` after each run that failed. With `final`, only if the job has
    failed for good.

    Snooze, RateLimited, waits and cancels are not failures. A timeout is a TimeoutError. The error
    of a run in another process is a JobFailed that describes it. What the function raises is
    logged, so that it does not replace the job's own error.
    """
    _check(function, "on_failure")
    outcomes = ("failed",) if final else ("failed", "retried")

    async def tell(ended: Ended) -> None:
        error, failure = ended.error, ended.ending.failure
        if ended.ending.outcome not in outcomes or failure is None:
            return
        if error is None or (
            isinstance(error, asyncio.CancelledError) and failure.reason == "timeout"
        ):
            error = TimeoutError(failure.message)
        try:
            await _result(function(ended.job, error))
        except Exception:
            log.exception("on_failure: %s raised an error", shown(function))

    async def middleware(job: CurrentJob, call_next: CallNext) -> object:
        try:
            result = await call_next(job)
        except BaseException as error:
            for ended in endings_of(job, error=error):
                await tell(ended)
            raise
        for ended in endings_of(job, result=result):  # of a batch; or it returned after a timeout
            await tell(ended)
        return result

    return middleware


async def _result(value: Any) -> None:
    if inspect.isawaitable(value):
        await value


def _check(function: object, name: str) -> None:
    if not callable(function):
        raise ConfigError(f"{name}({shown(function)}): give it a function")
