"""What the engine needs to know of a task. Tasks fit it; the engine imports none."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from jobq.core.policies import Retry
from jobq.core.queues import QueueConfig, ScheduleSpec
from jobq.core.records import Lease, QueueName
from jobq.stores.base import Clock, Store

ExecutorName = Literal["inline", "thread", "process", "command"]
Bound = tuple[Sequence[Any], Mapping[str, Any]]
"""Positional and keyword arguments, decoded."""


@dataclass(frozen=True)
class BatchSize:
    """How many jobs one call takes, and how long it waits for them once it has one."""

    size: int
    window_ms: int = 0


class Handler(Protocol):
    """A named function and how to run it."""

    @property
    def name(self) -> str:
        """The name that jobs carry."""
        ...

    @property
    def fn(self) -> Callable[..., Any]:
        """The function: a coroutine function for `inline`, a plain one for `thread`."""
        ...

    @property
    def executor(self) -> ExecutorName:
        """Where it runs."""
        ...

    @property
    def retry(self) -> Retry:
        """What a failure leads to, unless the job carries its own policy."""
        ...

    @property
    def timeout_ms(self) -> int | None:
        """How long a run may take, unless the job carries its own; None or 0: as long as it likes."""
        ...

    @property
    def max_stalls(self) -> int:
        """How many lost leases a job survives, unless it carries its own limit. The worker declares it with the queue."""
        ...

    @property
    def batch(self) -> BatchSize | None:
        """One call for many jobs: `bind` then gives each one's item, and the function takes a list of them. None: one each."""
        ...

    def bind(self, lease: Lease, /) -> Bound:
        """The arguments of this job. Raises if the payload does not fit the function."""
        ...

    def encode(self, value: Any, lease: Lease, /, what: str = "the result") -> bytes:
        """A result of this job (or `what` it is), as it is stored. Raises if it cannot be."""
        ...


class Source(Protocol):
    """What the worker needs to know of a queue."""

    @property
    def qname(self) -> QueueName:
        """Its whole name."""
        ...

    @property
    def url(self) -> str:
        """Where its jobs are kept."""
        ...

    @property
    def config(self) -> QueueConfig | None:
        """What code declares about it."""
        ...

    @property
    def tasks(self) -> Mapping[str, Handler]:
        """Its tasks by name. Looked at for every job: a task added later is found."""
        ...

    @property
    def planned(self) -> Mapping[str, ScheduleSpec]:
        """The schedules that its tasks were declared with, by id."""
        ...

    @property
    def clock(self) -> Clock | None:
        """A test's clock; None: the machine's."""
        ...

    def another_handle(self) -> Store:
        """Another handle on its store, not connected yet: for the event loop of another thread."""
        ...

    def opened(self) -> AbstractAsyncContextManager[Store]:
        """Its handle in the running event loop, which stays open for the length of the context, whoever closes the queue."""
        ...
