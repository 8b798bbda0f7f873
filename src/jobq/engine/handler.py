"""What the engine needs to know about tasks, queues and middleware.

These are protocols, so that the engine does not import the classes that users see.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from jobq.core.control import RateLimited, Snooze, WaitForChildren, WaitForSignal
from jobq.core.policies import Retry
from jobq.core.records.jobs import (
    AnyOutcome,
    Block,
    Complete,
    Fail,
    Failure,
    Hold,
    Lease,
    QueueName,
    RetryLater,
    SnoozeFor,
)
from jobq.core.records.queues import QueueConfig, ScheduleSpec
from jobq.core.values.codec import get_codec
from jobq.engine.run import Run
from jobq.errors import InvalidJob, JobFailed, JobqError, UnstorableResult
from jobq.stores.base import Clock, Store

ExecutorName = Literal["inline", "thread", "process", "command"]
EXECUTORS: tuple[ExecutorName, ...] = ("inline", "thread", "process", "command")
Bound = tuple[Sequence[Any], Mapping[str, Any]]
"""Decoded positional and keyword arguments."""


RESULT = "the result"
"""What `Handler.encode` encodes, if nothing else is said."""


def unstorable(error: Exception) -> UnstorableResult:
    """The error of a run whose result cannot be stored because of `error`."""
    match error:
        case InvalidJob(_unencodable=(place, why)):
            text = f"result{place}: {why}"
        case JobqError():
            text = str(error)
        case _:
            text = f"the result cannot be encoded: {type(error).__name__}: {error}"
    return UnstorableResult(text)


@dataclass(frozen=True)
class BatchSize:
    """How many jobs one call takes at most, and how long it waits for more after the first."""

    size: int
    window_ms: int = 0


class Handler(Protocol):
    """A task: a named function and how to run it."""

    @property
    def name(self) -> str:
        """The name that is stored with jobs."""
        ...

    @property
    def fn(self) -> Callable[..., Any]:
        """The function: a coroutine function for `inline`, a plain one for `thread`."""
        ...

    @property
    def executor(self) -> ExecutorName:
        """The executor that calls the function."""
        ...

    @property
    def retry(self) -> Retry:
        """The retry policy of jobs that were enqueued without one."""
        ...

    @property
    def timeout_ms(self) -> int | None:
        """The timeout of jobs that were enqueued without one. None or 0 means no timeout."""
        ...

    @property
    def grace_ms(self) -> int | None:
        """How long a run may take to stop when it is asked to. None: the worker's setting."""
        ...

    @property
    def max_stalls(self) -> int:
        """How many lost leases a job survives, if it was enqueued without its own limit.

        The worker declares it with the queue.
        """
        ...

    @property
    def batch(self) -> BatchSize | None:
        """Set if one call handles several jobs. None means one call per job.

        `bind` returns one item per job then, and the function takes a list of items.
        """
        ...

    def bind(self, lease: Lease, /) -> Bound:
        """Decode the arguments of this job.

        Raises UnfitArguments or UndecodableArguments if the function cannot be called with them.
        """
        ...

    def encode(self, value: Any, lease: Lease, /, what: str = RESULT) -> bytes:
        """Encode a result of this job. Raises UnstorableResult if it cannot be stored.

        Any other value raises what its codec does, or PayloadTooLarge, naming `what` it is."""
        ...


class Source(Protocol):
    """What the worker needs to know about a queue."""

    @property
    def qname(self) -> QueueName:
        """Its name and tenant."""
        ...

    @property
    def url(self) -> str:
        """The URL of its store."""
        ...

    @property
    def config(self) -> QueueConfig | None:
        """The settings that code declares for it."""
        ...

    @property
    def tasks(self) -> Mapping[str, Handler]:
        """Its tasks by name. Workers look here for every job, so tasks may be added later."""
        ...

    async def plans(self) -> Sequence[ScheduleSpec]:
        """Return the schedules of its tasks."""
        ...

    @property
    def clock(self) -> Clock | None:
        """The clock that a test injects. None means this machine's clock."""
        ...

    def another_handle(self) -> Store:
        """Return a new, unconnected handle on its store, for the event loop of another thread."""
        ...

    def opened(self) -> AbstractAsyncContextManager[Store]:
        """Return its store handle for the running event loop.

        The handle stays open while the context lasts, even if the queue is closed meanwhile.
        """
        ...


# Around: the seam for middleware. The engine calls it around the handler of each run.
#
# The engine knows no middleware. It has one function per handler, which gets the runs and a
# function that calls the handler, and returns the result to store.

Around = Callable[[Sequence[Run], Callable[[], Awaitable[Any]]], Awaitable[Any]]
"""Takes the runs (several of a batch, else one) and a function that calls the handler."""
AroundOf = Callable[[Handler], Around | None]
"""The Around of a handler. None: nothing is around it."""


class FailedApart(JobFailed):
    """A run in another process failed. The error itself stayed there; `failure` describes it.

    `final`: the job has failed for good, and is not retried.
    """

    def __init__(self, failure: Failure, *, final: bool) -> None:
        super().__init__(f"{failure.type}: {failure.message}", failure)
        self.final = final


class Passed:
    """What a run in another process gave to the functions around it.

    If they let the value or the error through unchanged, the outcome that the process has decided
    is the run's.
    """

    def __init__(self) -> None:
        self.outcome: AnyOutcome | None = None
        self.value: Any = None
        self.error: BaseException | None = None

    def pass_on(self, outcome: AnyOutcome | None, lease: Lease, *, interrupted: bool) -> Any:
        """Return or raise what the handler would have, had it run in the worker."""
        self.outcome = outcome
        if isinstance(outcome, Complete) and not interrupted:
            if outcome.result is not None:
                self.value = get_codec(lease.codec).decode(outcome.result)
            return self.value
        self.error = asyncio.CancelledError() if interrupted else _error(outcome)
        raise self.error


def _error(outcome: AnyOutcome | None) -> BaseException:
    match outcome:
        case Fail(failure=failure) | RetryLater(failure=failure):
            return FailedApart(failure, final=isinstance(outcome, Fail))
        case SnoozeFor(delay_ms=delay_ms):
            return Snooze(delay_ms / 1000)
        case Hold(delay_ms=delay_ms):
            return RateLimited(delay_ms / 1000)
        case Block(signal=None, after=after):
            return WaitForChildren(after)
        case Block(signal=str(name), seen=seen, timeout_ms=timeout_ms):
            return WaitForSignal(name, seen=seen, timeout_ms=timeout_ms)
    return asyncio.CancelledError()
