"""`queue.lock(task, …)`: who holds the unique lock of a call, and releasing it by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from jobq.api.blocking import Blocking, blocking
from jobq.api.context import QueueContext, QueueMethods
from jobq.api.info import JobInfo
from jobq.api.task import Task
from jobq.core.records.jobs import JobKey
from jobq.core.rules import locks
from jobq.core.values import checks
from jobq.core.values.checks import shown
from jobq.core.values.units import moment_or_none
from jobq.errors import InvalidJob


class LockInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A unique lock that is held."""

    job_id: str
    job: JobInfo | None  # None: the record of the holder is gone (throttle)
    until: datetime | None  # when the lock ends at the latest; None: when the job ends
    follow_up: str | None  # id of the job that is blocked until the holder ends (keep_last)


class JobLock:
    """The unique lock of a call. Its methods ask the store."""

    __slots__ = ("_context", "lock")

    def __init__(self, context: QueueContext, lock: str) -> None:
        self._context = context
        self.lock = lock
        """The digest of the task and the unique arguments, as in `JobInfo.options.unique`."""

    def __repr__(self) -> str:
        return f"<JobLock {self.lock} of queue {self._context.name!r}>"

    async def info(self) -> LockInfo | None:
        """Who holds the lock. None if it is free."""
        store, qname = await self._context.store(), self._context.qname
        held = await store.find_lock(qname, self.lock)
        if held is None:
            return None
        (record,) = await store.get([JobKey(qname, held.job)])
        return LockInfo(
            job_id=held.job,
            job=None if record is None else self._context.job_info(record),
            until=moment_or_none(held.until_ms),
            follow_up=held.follow_up,
        )

    async def release(self, *, job_id: str | None = None) -> bool:
        """Release the lock, so that the next such call is accepted. False if it was free.

        The job that held the lock goes on, so two such jobs may run at the same time: cancel the
        job instead if that must not happen. A follow-up (keep_last) is unblocked and takes the
        lock. With `job_id`, the lock is released only if that job holds it.
        """
        store = await self._context.store()
        return await store.release_lock(
            self._context.qname,
            self.lock,
            job=None if job_id is None else checks.check_id(job_id, "job_id"),
            actor=self._context.actor,
        )

    @property
    def sync(self) -> SyncJobLock:
        """The same lock with blocking methods."""
        return SyncJobLock(self)


class SyncJobLock(Blocking):
    """A unique lock with blocking methods."""

    __slots__ = ()

    _of: JobLock

    def __init__(self, lock: JobLock) -> None:
        self._of = lock

    @property
    def lock(self) -> str:
        """See `JobLock.lock`."""
        return self._of.lock

    info = blocking(JobLock.info)
    release = blocking(JobLock.release)


class LockMethods(QueueMethods):
    """The methods of `Queue` for unique locks."""

    def lock(self, task: Task[..., Any], /, *args: Any, **kwargs: Any) -> JobLock:
        """The unique lock of a call: `await queue.lock(charge, invoice=7).info()`.

        Only the arguments that the task's `Unique` names are needed. A task that is known by name
        needs the policy: `queue.task_by_name("charge", unique=Unique("invoice"))`.
        """
        if not isinstance(task, Task):
            raise InvalidJob(f"lock({shown(task)}): give a task of the queue")
        if task._context.qname != self.qname:
            raise InvalidJob(
                f"lock({task.name}): the task belongs to queue {task._context.name!r}, "
                f"not to {self.qname.queue!r}"
            )
        return JobLock(self._context, _digest(task, args, kwargs))


def _digest(task: Task[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    policy, definition = task._options.unique, task._definition
    if policy is None:
        raise InvalidJob(
            f"lock({task.name}): the task is not unique; "
            f"give the policy with {task.name}.options(unique=Unique(…))"
        )
    if not policy.fields or definition.shape is None:
        bound = definition.bound(args, kwargs)
    else:
        bound = definition.shape.bound_partly(args, kwargs)
    for field in policy.fields:
        if field not in bound:
            raise InvalidJob(f"lock({task.name}): give {field}=, which is part of the lock")
    return locks.unique_lock(policy.fields, task.name, bound, task._context.codec)
