"""What the engine needs to know about tasks and queues.

These are protocols, so that the engine does not import the classes that users see.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from jobq.core.policies import Retry
from jobq.core.queues import QueueConfig, ScheduleSpec
from jobq.core.records import Lease, QueueName
from jobq.errors import InvalidJob, JobqError, UnstorableResult
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
