"""The options of calls and tasks: checks each one, and turns them into fields of a JobSpec.

`JobOptions` go with a call (`task.options(…)`), `TaskOptions` with `@queue.task(…)`. The retry
policy, timeout, max_stalls and executor of a task live in worker code, so a deploy also changes
them for jobs that are already queued. Given per call, retry, timeout and max_stalls are stored with
the job.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, TypedDict

from jobq.api.aliases import Upgrader
from jobq.api.job import Job
from jobq.api.sync.job import SyncJob
from jobq.core import checks
from jobq.core.checks import Seconds, shown
from jobq.core.meta import check_meta
from jobq.core.policies import Cron, Every, Permissions, Retention, Retry, Unique
from jobq.core.queues import QueueConfig
from jobq.core.records import Edge, JobKey
from jobq.engine.handler import EXECUTORS, ExecutorName
from jobq.errors import ConfigError, InvalidJob

DEFAULT_CALL_TIMEOUT: Seconds = 30
"""How long `task.call(…)` waits for its result unless `call_timeout=` gives another time."""


class JobOptions(TypedDict, total=False):
    """Options of one call. A plain number for a time is in seconds."""

    id: str
    delay: Seconds
    at: datetime
    priority: int
    lifo: bool
    retry: Retry | int
    max_stalls: int
    timeout: Seconds | None
    ttl: Seconds | None
    result_ttl: Seconds
    after: Sequence[Job[Any] | SyncJob[Any]]
    unique: Unique | bool
    cost: int
    key: str
    call_timeout: Seconds
    on_child_failure: Literal["fail", "ignore", "continue"]
    meta: Mapping[str, str]


class TaskOptions(JobOptions, total=False):
    """Options of a task: defaults for its calls, and how workers run it. Here `key` is the name of
    the parameter that holds the key."""

    name: str
    aliases: Sequence[str] | Mapping[str, Upgrader | None]
    schedule: Cron | Every | None
    executor: ExecutorName
    grace: Seconds
    permissions: Permissions


Fields = dict[str, Any]
"""Fields of a JobSpec."""


def _retry(value: object) -> Fields:
    return {"retry": Retry.of(value).data}


def _edges(value: object) -> tuple[Edge, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise InvalidJob(f"after={shown(value)} is not a list of jobs")
    return tuple(Edge(_job_key(job), data=False) for job in value)


def _job_key(job: Any) -> JobKey:
    key = getattr(job, "job_key", None)
    if not isinstance(key, JobKey):
        raise InvalidJob(
            f"after: {shown(job)} is not a job: give the handles that enqueue returned"
        )
    return key


# Option → the spec's fields that it sets. `unique`, `key` (of a task) and `call_timeout` do more;
# see `Task`.
_TO_FIELDS: dict[str, Callable[[Any], Fields]] = {
    "id": lambda v: {"id": checks.check_id(v), "given_id": True},
    "delay": lambda v: {"delay_ms": checks.check_delay(v), "at_ms": None},
    "at": lambda v: {"at_ms": checks.check_at(v), "delay_ms": 0},
    "priority": lambda v: {"priority": checks.check_priority(v)},
    "lifo": lambda v: {"lifo": checks.check_bool(v, "lifo")},
    "retry": _retry,
    "max_stalls": lambda v: {"max_stalls": checks.check_max_stalls(v)},
    "timeout": lambda v: {"timeout_ms": checks.check_timeout(v)},
    "ttl": lambda v: {"ttl_ms": checks.check_ttl(v)},
    "result_ttl": lambda v: {"result_ttl_ms": checks.check_result_ttl(v)},
    "after": lambda v: {"after": _edges(v)},
    "cost": lambda v: {"cost": checks.check_cost(v)},
    "key": lambda v: {"key": checks.check_key(v)},
    "meta": lambda v: {"meta": check_meta(v)},
    "on_child_failure": lambda v: {
        "on_child_failure": checks.check_choice(
            v, "on_child_failure", ("fail", "ignore", "continue")
        ),
    },
}
_OF_JOB = frozenset(_TO_FIELDS) | {"unique", "call_timeout"}
_OF_WORKER_ONLY = frozenset({"name", "aliases", "schedule", "executor", "grace", "permissions"})
_OF_TASK = _OF_JOB | _OF_WORKER_ONLY
_OF_ONE_JOB = frozenset({"id", "at", "after", "key", "unique"})
_OF_WORKER = _OF_WORKER_ONLY | {"retry", "timeout", "max_stalls"}


class Resolved:
    """Checked options: the fields that every spec gets, and three that depend on the call."""

    __slots__ = ("call_timeout_ms", "fields", "given", "key_parameter", "unique")

    def __init__(
        self,
        fields: Fields,
        unique: Unique | None,
        key_parameter: str | None,
        call_timeout_ms: int,
        given: Mapping[str, Any],
    ) -> None:
        self.given = given  # as users wrote them
        self.fields = fields
        self.unique = unique
        self.key_parameter = key_parameter
        self.call_timeout_ms = call_timeout_ms

    def with_options(self, options: Mapping[str, Any]) -> Resolved:
        """A copy with the options of a call added. Raises InvalidJob, which names the option, if
        one is unknown or has a bad value."""
        if not options.keys() <= _OF_JOB:
            checks.check_known(options, _OF_JOB)
        fields = dict(self.fields)
        unique, key_parameter, call_timeout_ms = (
            self.unique,
            self.key_parameter,
            self.call_timeout_ms,
        )
        if "delay" in options and "at" in options:
            raise InvalidJob(
                f"delay={shown(options['delay'])} and at={shown(options['at'])}: give one of them"
            )
        for name, value in options.items():
            if name == "unique":
                unique = Unique.of(value)
            elif name == "call_timeout":
                call_timeout_ms = checks.to_ms(value, "call_timeout")
            else:
                fields.update(_TO_FIELDS[name](value))
        given = {**self.given, **options}
        for one, other in (("delay", "at"), ("at", "delay")):
            if one in options:
                given.pop(other, None)
        return Resolved(
            fields, unique, None if "key" in options else key_parameter, call_timeout_ms, given
        )

    def with_only(self, options: Mapping[str, Any]) -> Resolved:
        """These options instead of its own. The parameter that holds the key stays."""
        new = NOTHING.with_options(options)
        if "key" not in options:
            new.key_parameter = self.key_parameter
        return new


NOTHING = Resolved({}, None, None, checks.to_ms(DEFAULT_CALL_TIMEOUT, "call_timeout"), {})


def resolve_task(options: Mapping[str, Any]) -> tuple[Resolved, Mapping[str, Any]]:
    """Split the options of `@queue.task` into those for its calls and those for its workers. The
    latter are not checked yet."""
    if not options.keys() <= _OF_TASK:
        checks.check_known(options, _OF_TASK)
    key = options.get("key")
    if "key" in options and not isinstance(key, str):
        raise InvalidJob(
            f"key={shown(key)}: in @queue.task, give the name of the parameter that holds the key"
        )
    of_job = {
        name: value for name, value in options.items() if name not in _OF_WORKER and name != "key"
    }
    calls = NOTHING.with_options(of_job)
    resolved = Resolved(calls.fields, calls.unique, key, calls.call_timeout_ms, calls.given)
    return resolved, {name: value for name, value in options.items() if name in _OF_WORKER}


# ── what Queue(…) declares ────────────────────────────────────────────────────────────────────────


def queue_config(*, limits_version: int, **declared: Any) -> QueueConfig | None:
    """What a queue declares. None if it declares nothing: then opening the queue needs no store
    call, and what is stored applies."""
    if all(value is None for value in declared.values()):
        return None
    return QueueConfig(limits_version=limits_version, **declared)


def task_defaults(
    executor: ExecutorName | None,
    permissions: Permissions | None,
    defaults: Mapping[str, Any] | None,
) -> Mapping[str, Any]:
    """The options that a queue gives to its tasks. ConfigError names a bad value."""
    if executor is not None:
        checks.check_choice(executor, "executor", EXECUTORS, error=ConfigError)
    if permissions is not None and not isinstance(permissions, Permissions):
        raise ConfigError(f"permissions={shown(permissions)} is not a Permissions")
    if defaults is not None and not isinstance(defaults, Mapping):
        raise ConfigError(f"defaults={shown(defaults)} is not a mapping of job options")
    options = dict(defaults or {})
    if single := sorted(_OF_ONE_JOB & options.keys()):
        raise ConfigError(f"defaults: {single[0]} is an option of a single job or task")
    try:
        NOTHING.with_options(options)
    except InvalidJob as error:
        raise ConfigError(f"defaults: {error}") from None
    given = {"executor": executor, "permissions": permissions}
    return {**options, **{name: value for name, value in given.items() if value is not None}}


def calls_only(defaults: Mapping[str, Any]) -> Mapping[str, Any]:
    """The defaults that are stored with a job. The others are those of the task's worker."""
    return {name: value for name, value in defaults.items() if name not in _OF_WORKER}


def retention_data(value: Retention | None) -> Any:
    """The stored form of a Retention. ConfigError if the value is something else."""
    if value is not None and not isinstance(value, Retention):
        raise ConfigError(f"retention={shown(value)} is not a Retention")
    return None if value is None else value.data
