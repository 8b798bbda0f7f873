"""The options that apply to a job: those of its call, else those of its task."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Literal, Protocol

import msgspec

from jobq.core.moments import moment_or_none
from jobq.core.policies import Retry
from jobq.core.policies.retry import stored_retry
from jobq.core.records import ChildPolicy, JobRecord, UniqueMode, UniqueSpec

ByWorker = Literal["worker"]
"""Stands for an option that the task decides, where this process does not have the task."""


class TaskPolicy(Protocol):
    """What a task decides for its jobs, unless the call gives its own option."""

    @property
    def retry(self) -> Retry:
        """When a failed job is retried."""
        ...

    @property
    def timeout_ms(self) -> int | None:
        """How long a run may take; None: no limit."""
        ...

    @property
    def max_stalls(self) -> int:
        """How often a job may lose its worker before it fails."""
        ...


class UniqueLock(msgspec.Struct, frozen=True, kw_only=True):
    """The unique lock of a job. `lock` is a digest of the task and the arguments: jobs with the
    same digest count as the same job. `period`: how long the lock holds at most."""

    lock: str
    mode: UniqueMode
    period: timedelta | None


class AppliedOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options that apply to a job.

    "worker" means that the task decides, and this process does not have the task.
    """

    retry: Retry | ByWorker
    timeout: timedelta | ByWorker | None  # None: no limit
    max_stalls: int | ByWorker
    ttl: timedelta | None
    result_ttl: timedelta | None  # None: the retention of its queue
    cost: int
    unique: UniqueLock | None
    key: str | None
    priority: int
    lifo: bool
    delay: timedelta | None
    at: datetime | None
    on_child_failure: ChildPolicy


def applied(record: JobRecord, task: TaskPolicy | None = None) -> AppliedOptions:
    """The options that apply to a job. `task`: the policy of its task, if this process has it."""
    options = record.options
    return AppliedOptions(
        retry=stored_retry(options.retry)
        if options.retry is not None
        else task.retry
        if task is not None
        else "worker",
        timeout=_timeout(options.timeout_ms, task),
        max_stalls=options.max_stalls
        if options.max_stalls is not None
        else task.max_stalls
        if task is not None
        else "worker",
        ttl=_span(options.ttl_ms),
        result_ttl=_span(options.result_ttl_ms),
        cost=options.cost,
        unique=None if options.unique is None else _lock(options.unique),
        key=record.key,
        priority=record.priority,
        lifo=options.lifo,
        delay=_span(options.delay_ms or None),
        at=moment_or_none(options.at_ms),
        on_child_failure=options.on_child_failure,
    )


def _timeout(own_ms: int | None, task: TaskPolicy | None) -> timedelta | ByWorker | None:
    if own_ms is None and task is None:
        return "worker"
    ms = own_ms if own_ms is not None else task.timeout_ms if task is not None else None
    return _span(ms or None)  # a call stores 0 for timeout=None


def _lock(unique: UniqueSpec) -> UniqueLock:
    return UniqueLock(lock=unique.lock, mode=unique.mode, period=_span(unique.ttl_ms))


def _span(ms: int | None) -> timedelta | None:
    return None if ms is None else timedelta(milliseconds=ms)
