"""TaskBackend: runs the tasks of Django's framework as jobs."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from django.core.checks import CheckMessage, Error
from django.db import transaction
from django.utils import timezone

from jobq.client.transaction import AfterCommit
from jobq.core.policies import Retry
from jobq.core.values import checks
from jobq.core.values.checks import did_you_mean, shown
from jobq.django.config import Enqueue, check_enqueue, config
from jobq.django.tasks import registry, results
from jobq.django.tasks.framework import (
    BaseTaskBackend,
    InvalidTask,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
    normalize_json,
    task_enqueued,
)
from jobq.django.tasks.registry import TaskQueue
from jobq.django.tasks.results import ALIAS, PRIORITY_SHIFT, result_of
from jobq.errors import ConfigError, InvalidJob, JobNotFound

_OPTIONS = ("url", "tenant", "database", "enqueue", "retry", "timeout", "result_ttl")


class TaskBackend(BaseTaskBackend):
    """Runs tasks in the workers of `manage.py jobq_worker`.

    TASKS = {"default": {"BACKEND": "jobq.django.TaskBackend", "OPTIONS": {…}}}

    OPTIONS: `url`, `tenant` and `database` are those of settings.JOBQ if they are left out. `retry`
    is a number of retries or a `jobq.Retry` (default: 0, because Django promises none). `timeout`
    of a run and `result_ttl` are in seconds. `enqueue` is "at_once" (default), "after_commit" or
    "in_transaction" (default if JOBQ["DATABASE"] stores the jobs in Django's own database).
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        super().__init__(alias, params)
        for name in self.options:
            if name not in _OPTIONS:
                raise ConfigError(
                    f"TASKS[{alias!r}] has the unknown option {shown(name)}"
                    f"{did_you_mean(str(name), _OPTIONS)}; its options are {', '.join(_OPTIONS)}"
                )
        self._retry = Retry.of(self.options.get("retry", 0))
        self._retry.data  # noqa: B018 (raises if the policy cannot be stored with a job)
        if (mode := self.options.get("enqueue")) is not None:
            check_enqueue(mode, f"TASKS[{alias!r}]: enqueue")

    def validate_task(self, task: Any) -> None:
        """InvalidTask if the backend cannot run the task. Otherwise workers can from now on."""
        super().validate_task(task)
        try:
            checks.check_task_name(task.module_path)
            checks.check_queue_name(task.queue_name, "queue name")
        except (InvalidJob, ConfigError) as error:
            raise InvalidTask(str(error)) from error
        if len(task.queue_name) > results.MAX_QUEUE_NAME:
            raise InvalidTask(
                f"queue name {task.queue_name!r} has {len(task.queue_name)} characters, more than "
                f"the {results.MAX_QUEUE_NAME} that fit in the id of a result"
            )
        registry.add_task(task)

    def enqueue(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Store a job for the task. TypeError if the arguments do not fit the function or JSON."""
        self.validate_task(task)
        args, kwargs = normalize_json(list(args)), normalize_json(dict(kwargs))
        inspect.signature(task.func).bind(*((None,) if task.takes_context else ()), *args, **kwargs)
        queue = self.queue(task.queue_name)
        job = queue.sync.task_by_name(task.module_path, **self._job_options(task)).enqueue(
            *args, **kwargs
        )
        result = TaskResult(
            task=task,
            id=results.result_id(queue.name, job.id),
            status=TaskResultStatus.READY,
            enqueued_at=timezone.now(),
            started_at=None,
            finished_at=None,
            last_attempted_at=None,
            args=args,
            kwargs=kwargs,
            backend=self.alias,
            errors=[],
            worker_ids=[],
        )
        announce = partial(task_enqueued.send, type(self), task_result=result)
        if isinstance(queue._surrounding(), AfterCommit):
            transaction.on_commit(announce, using=queue.database)
        else:
            announce()
        return result

    def get_result(self, result_id: str) -> Any:
        """The result as it is now. TaskResultDoesNotExist if there is no such task."""
        if (parts := results.parts_of(result_id)) is None or (
            self.queues and parts[0] not in self.queues
        ):
            raise TaskResultDoesNotExist(result_id)
        try:
            info = self.queue(parts[0]).sync.job(parts[1]).info()
        except (JobNotFound, InvalidJob, ConfigError) as error:
            raise TaskResultDoesNotExist(result_id) from error
        task = registry.task_of(info.name)
        if task is None:  # a job of another kind, or a task that is gone
            raise TaskResultDoesNotExist(result_id)
        return result_of(info, task, result_id)

    def check(self, **_: Any) -> Iterable[CheckMessage]:
        """`manage.py check`: whether the settings name a store."""
        try:
            self.queue("default").url  # noqa: B018 (raises)
        except ConfigError as error:
            yield Error(f"TASKS[{self.alias!r}]: {error}", id="jobq.E002")

    def queue(self, name: str) -> TaskQueue:
        """The queue of jobq that has the jobs of a queue of Django."""
        return registry.queue_of(self.alias, name, self.options, self._mode())

    def _mode(self) -> Enqueue:
        if (mode := self.options.get("enqueue")) is not None:
            return check_enqueue(mode, "enqueue")
        in_one = "url" not in self.options and config().mode() == "in_transaction"
        return "in_transaction" if in_one else "at_once"

    def _job_options(self, task: Any) -> dict[str, Any]:
        options: dict[str, Any] = {
            "priority": task.priority + PRIORITY_SHIFT,
            "retry": self._retry,
            "meta": {ALIAS: self.alias},
        }
        if (at := task.run_after) is not None:
            options["at"] = at if timezone.is_aware(at) else timezone.make_aware(at)
        for name in ("timeout", "result_ttl"):
            if (seconds := self.options.get(name)) is not None:
                options[name] = seconds
        return options
