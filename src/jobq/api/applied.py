"""The options that apply to a job: those of its call, else those of its task."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Literal, Protocol

import msgspec

from jobq.core.moments import moment_or_none
from jobq.core.options import APPLIED, Option
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

    # begin scripts/options.py: applied_options
    priority: int
    """Higher runs first, from 0 to 2,097,151. Default: 0."""
    lifo: bool
    """Put the job before the others of its priority instead of after them."""
    delay: timedelta | None
    """Start the job after this time."""
    at: datetime | None
    """Start the job at this time."""
    ttl: timedelta | None
    """Fail the job as expired if it has not started within this time after it was due."""
    result_ttl: timedelta | None
    """How long to keep the job's record after it ends. Default: the queue's retention."""
    retry: ByWorker | Retry
    """Retries after failed runs. Default: as declared by the task."""
    timeout: ByWorker | timedelta | None
    """Time limit of one run. Default: as declared by the task."""
    max_stalls: ByWorker | int
    """How often the job may lose its worker before it fails. Default: as declared by the task."""
    key: str | None
    """Key of the job, in a keyed queue."""
    cost: int
    """How much of the queue's rate the job takes. Default: 1."""
    unique: UniqueLock | None
    """Add the job only if no other has the same arguments."""
    on_child_failure: ChildPolicy
    """What a failed child does to the job: fail, ignore or continue. Default: fail."""
    # end scripts/options.py


def applied(record: JobRecord, task: TaskPolicy | None = None) -> AppliedOptions:
    """The options that apply to a job. `task`: the policy of its task, if this process has it."""
    return AppliedOptions(
        **{option.name: _applied(option, option.of(record), task) for option in APPLIED}
    )


def _applied(option: Option, value: Any, task: TaskPolicy | None) -> Any:
    if value is None and option.by_worker:
        if task is None:
            return "worker"
        value = getattr(task, option.field)
    match option.kind:
        case "span":
            return _span(value or None)  # 0 is no delay, and no timeout
        case "moment":
            return moment_or_none(value)
        case "retry":
            return value if isinstance(value, Retry) else stored_retry(value)
        case "unique":
            return None if value is None else _lock(value)
        case _:
            return value


def _lock(unique: UniqueSpec) -> UniqueLock:
    return UniqueLock(lock=unique.lock, mode=unique.mode, period=_span(unique.ttl_ms))


def _span(ms: int | None) -> timedelta | None:
    return None if ms is None else timedelta(milliseconds=ms)
