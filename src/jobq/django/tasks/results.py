"""A job as a TaskResult of Django, and its id: the queue and the id of the job.

Django has no state for cancelled tasks, so they are FAILED. A result has one worker per attempt,
and one error per failed attempt of the last ten.
"""

from __future__ import annotations

import builtins
import copy
from datetime import datetime
from traceback import format_exception
from typing import Any

from django.conf import settings
from django.utils import timezone

import jobq
from jobq.api.info import Failure, JobInfo
from jobq.core.records.states import State
from jobq.django.tasks.framework import TaskError, TaskResult, TaskResultStatus, task_backends

# Ids of results: the queue and the id of a job, because Django looks a result up by its id alone.
#
# Django's ids have fewer than 64 characters.

_MAX_LENGTH = 63
_JOB_ID_LENGTH = 26
"""Characters of an id that jobq makes (core/values/ids.py)."""
MAX_QUEUE_NAME = _MAX_LENGTH - _JOB_ID_LENGTH - 1
"""Characters of a queue name that fits in an id."""


def result_id(queue: str, job: str) -> str:
    """The id of a result."""
    return f"{queue}:{job}"


def parts_of(id: str) -> tuple[str, str] | None:
    """The queue and the id of the job. None if it is not the id of a result."""
    queue, colon, job = str(id).rpartition(":")
    return (queue, job) if colon and queue and job else None


PRIORITY_SHIFT = MAX_PRIORITY = 100
"""Django's priorities are −100 to 100, and those of jobq begin at 0."""
ALIAS = "django_tasks"
"""The name in a job's meta whose value is the alias of the backend that enqueued the job."""
UNKNOWN_WORKER = "unknown"
"""Stands for the worker of an attempt that left no record: it was released, or is long ago."""

_STATUS = {
    State.DELAYED: TaskResultStatus.READY,
    State.BLOCKED: TaskResultStatus.READY,
    State.WAITING: TaskResultStatus.READY,
    State.ACTIVE: TaskResultStatus.RUNNING,
    State.COMPLETED: TaskResultStatus.SUCCESSFUL,
    State.FAILED: TaskResultStatus.FAILED,
    State.CANCELLED: TaskResultStatus.FAILED,
}


def result_of(info: JobInfo, task: Any, id: str) -> Any:
    """The TaskResult of a job."""
    alias = info.meta.get(ALIAS)
    if alias not in task_backends.settings:  # it was renamed after the job was enqueued
        alias = task.backend
    called = copy.copy(task)  # without the checks of a new task: the settings may have changed
    set_fields(
        called,
        # An operator may have given the job a priority that Django does not have.
        priority=min(info.priority - PRIORITY_SHIFT, MAX_PRIORITY),
        queue_name=info.queue,
        backend=alias,
        run_after=_moment(info.options.at),
    )
    result = TaskResult(
        task=called,
        id=id,
        status=_STATUS[info.state],
        enqueued_at=_moment(info.created_at),
        started_at=_moment(info.started_at),
        finished_at=_moment(info.finished_at),
        last_attempted_at=_moment(info.started_at),
        args=list(info.args),
        kwargs=dict(info.kwargs),
        backend=alias,
        errors=_errors(info),
        worker_ids=_workers(info),
    )
    if info.state is State.COMPLETED:
        set_fields(result, _return_value=info.result)
    return result


def set_fields(frozen: Any, **fields: Any) -> None:
    """Change a Task or a TaskResult, which are frozen for their users."""
    for name, value in fields.items():
        object.__setattr__(frozen, name, value)


def error_of(error: BaseException) -> Any:
    """The TaskError of an exception that was just raised."""
    cls = type(error)
    return TaskError(
        exception_class_path=f"{cls.__module__}.{cls.__qualname__}",
        traceback="".join(format_exception(error)),
    )


def error_of_failure(failure: Failure) -> Any:
    """The TaskError of a failure as the store has it."""
    return TaskError(
        exception_class_path=class_path(failure.type),
        traceback=failure.traceback or f"{failure.type}: {failure.message}\n",
    )


def _moment(at: datetime | None) -> datetime | None:
    """A time as `timezone.now()` gives it: without a zone if USE_TZ is False."""
    return at if at is None or settings.USE_TZ else timezone.make_naive(at)


def _errors(info: JobInfo) -> list[Any]:
    failures = list(info.errors)
    last = info.failure
    if last is not None and all(last.attempt != each.attempt for each in failures):
        failures.append(last)  # no run failed: the job has expired, or nobody knows its task
    errors = [error_of_failure(each) for each in failures]
    if info.state is State.CANCELLED:
        text = f"the task was {info.reason or 'cancelled'}"
        errors.append(
            TaskError(
                exception_class_path="jobq.JobCancelled", traceback=f"jobq.JobCancelled: {text}\n"
            )
        )
    return errors


def _workers(info: JobInfo) -> list[str]:
    """The worker of each attempt. The list is as long as there were attempts."""
    known: dict[int, str | None] = {each.attempt: each.worker for each in info.errors}
    if info.worker is not None:
        known[info.attempt] = info.worker
    return [known.get(attempt) or UNKNOWN_WORKER for attempt in range(1, info.attempt + 1)]


def class_path(type: str) -> str:
    """The path of an exception class that Django can import, from the type of a failure."""
    name = type.removeprefix("jobq.")
    if "." in name:
        return type
    if isinstance(getattr(builtins, name, None), builtins.type):
        return f"builtins.{name}"
    return f"jobq.{name}" if name in jobq.__all__ else "jobq.JobFailed"
