"""Runs a task of Django's framework as a job: its context, its result and its signals."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from django.utils import timezone

from jobq.api.current import CurrentJob, current_job
from jobq.api.info import JobInfo
from jobq.core.records.jobs import Fail, RetryLater
from jobq.core.rules.decide import Raised, decide
from jobq.django.tasks import results
from jobq.django.tasks.framework import (
    TaskContext,
    TaskResultStatus,
    normalize_json,
    task_backends,
    task_finished,
    task_started,
)
from jobq.django.tasks.results import error_of, error_of_failure, result_of, set_fields

if TYPE_CHECKING:
    from jobq.django.tasks.registry import TaskQueue


def handler_of(queue: TaskQueue, task: Any, *, is_async: bool) -> Callable[..., Any]:
    """The function that a worker calls for a task."""

    def run(*args: Any, **kwargs: Any) -> Any:
        attempt = Attempt(queue, task, queue.sync.job(current_job().id).info())
        task_started.send(sender=attempt.sender, task_result=attempt.result)
        try:
            value = normalize_json(task.func(*attempt.context, *args, **kwargs))
        except BaseException as error:
            if attempt.failed(error):
                task_finished.send(sender=attempt.sender, task_result=attempt.result)
            raise
        if attempt.succeeded(value):
            task_finished.send(sender=attempt.sender, task_result=attempt.result)
        return value

    async def arun(*args: Any, **kwargs: Any) -> Any:
        attempt = Attempt(queue, task, await queue.job(current_job().id).info())
        await task_started.asend(sender=attempt.sender, task_result=attempt.result)
        try:
            value = normalize_json(await task.func(*attempt.context, *args, **kwargs))
        except BaseException as error:
            if attempt.failed(error):
                await task_finished.asend(sender=attempt.sender, task_result=attempt.result)
            raise
        if attempt.succeeded(value):
            await task_finished.asend(sender=attempt.sender, task_result=attempt.result)
        return value

    function: Callable[..., Any] = arun if is_async else run
    # The name that errors and logs show. Without __wrapped__: a context is no argument of a job.
    function.__module__ = task.func.__module__
    function.__name__, function.__qualname__ = task.func.__name__, task.func.__qualname__
    return function


class Attempt:
    """One run of a task. `result` is what the signals and the task's context show."""

    def __init__(self, queue: TaskQueue, task: Any, info: JobInfo) -> None:
        self.result = result_of(info, task, results.result_id(info.queue, info.id))
        self.sender = type(task_backends[self.result.backend])
        self.context = (TaskContext(task_result=self.result),) if task.takes_context else ()
        self._retry = queue.tasks[info.name].retry
        self._job: CurrentJob = current_job()

    def succeeded(self, value: Any) -> bool:
        """Record a result. False if nobody stores it: the worker has given up on this run."""
        if self._is_over:
            return False
        self._finish(TaskResultStatus.SUCCESSFUL, _return_value=value)
        return True

    def failed(self, error: BaseException) -> bool:
        """Record an error. False if it does not end the task: it is retried, or is no failure."""
        if self._is_over:
            return False
        run = self._job._run
        # If the worker has interrupted the run, CancelledError means what the worker wanted.
        wanted = getattr(run, "end", None) if isinstance(error, asyncio.CancelledError) else None
        end = wanted or Raised(error)
        outcome = decide(run.lease, end, retry=self._retry, now_ms=run.now_ms, random=lambda: 0.0)
        if isinstance(outcome, (Fail, RetryLater)):
            self.result.errors.append(
                error_of(error) if wanted is None else error_of_failure(outcome.failure)
            )
        if not isinstance(outcome, Fail):
            return False
        self._finish(TaskResultStatus.FAILED)
        return True

    @property
    def _is_over(self) -> bool:
        """Whether the run was settled without its end: a thread past its timeout, a lost lease."""
        return bool(getattr(self._job._run, "concluded", False))

    def _finish(self, status: Any, **fields: Any) -> None:
        set_fields(self.result, status=status, finished_at=timezone.now(), **fields)
