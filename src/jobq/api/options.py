"""The options of calls and tasks: checks each one, and turns them into fields of a JobSpec.

`JobOptions` go with a call (`task.options(…)`), `TaskOptions` with `@queue.task(…)`. The retry
policy, timeout, max_stalls and executor of a task live in worker code, so a deploy also changes
them for jobs that are already queued. Given per call, retry, timeout and max_stalls are stored with
the job.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypedDict

from jobq.api.job import Job, SyncJob
from jobq.api.task_handler import runs_async
from jobq.core.policies import Cron, Every, Permissions, Retention, Retry, Unique
from jobq.core.records.jobs import ChildPolicy, Edge, Input, JobKey
from jobq.core.records.queues import QueueConfig
from jobq.core.rules.calls import ArgumentDecoder, CallShape
from jobq.core.rules.options import BY_NAME, TASK_OPTIONS
from jobq.core.values import checks
from jobq.core.values.checks import Seconds, shown
from jobq.core.values.codec import Codec
from jobq.engine.handler import EXECUTORS, ExecutorName
from jobq.errors import ConfigError, InvalidJob, UnfitArguments

# Aliases: a task also runs jobs that were stored under its old names.
#
# An old name may come with an upgrader, which turns the arguments of an old job into those of the
# function as it is now. So a task can be renamed, or its parameters changed, while old jobs are
# queued and old producers run.

Upgrader = Callable[..., Mapping[str, Any] | Sequence[Any]]
"""Takes the arguments of an old job. Returns those of the function: a dict of named ones, or a list
or tuple of positional ones."""


def check_aliases(value: object, task: str) -> dict[str, Upgrader | None]:
    """The old names of a task, each with its upgrader. ConfigError if the option is wrong."""
    if value is None:
        return {}
    if isinstance(value, Mapping):
        aliases = dict(value)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        aliases = dict.fromkeys(value)
    else:
        raise ConfigError(
            f"aliases={shown(value)} of task {task}: give a list of old names, or a dict of old "
            "names and the functions that upgrade their arguments"
        )
    for name, upgrade in aliases.items():
        checks.check_task_name(name, error=ConfigError)
        if name == task:
            raise ConfigError(f"aliases of task {task}: {name!r} is the task's present name")
        if upgrade is not None and (not callable(upgrade) or runs_async(upgrade)):
            raise ConfigError(
                f"aliases of task {task}: {shown(upgrade)}, which upgrades {name!r}, is not a "
                "plain function"
            )
    return aliases


class UpgradingDecoder(ArgumentDecoder):
    """Decodes the arguments of an old job by its upgrader's annotations, and upgrades them."""

    __slots__ = ("_shape", "_upgrade")

    def __init__(self, upgrade: Upgrader, name: str, shape: CallShape) -> None:
        """`name` is the old name, and `shape` is that of the function as it is now."""
        super().__init__(upgrade, name)
        self._upgrade = upgrade
        self._shape = shape

    def decode(
        self, payload: bytes, codec: Codec, inputs: Sequence[Input] = ()
    ) -> tuple[list[Any], dict[str, Any]]:
        """The arguments for the function as it is now. UnfitArguments if they do not fit it."""
        old_args, old_kwargs = super().decode(payload, codec, inputs)
        new = self._upgrade(*old_args, **old_kwargs)
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        if isinstance(new, Mapping):
            kwargs = dict(new)
        elif isinstance(new, (list, tuple)):
            args = list(new)
        else:
            raise InvalidJob(
                f"the function that upgrades jobs of {self.name} returned {shown(new)}: it must "
                "return a dict of named arguments, or a list or tuple of positional ones"
            )
        try:
            self._shape.check(args, kwargs)
        except InvalidJob as error:
            raise UnfitArguments(str(error)) from None
        return args, kwargs


DEFAULT_CALL_TIMEOUT: Seconds = 30
"""How long `task.call(…)` waits for its result unless `call_timeout=` gives another time."""


class JobOptions(TypedDict, total=False):
    """Options of one call. A plain number for a time is in seconds."""

    # begin scripts/options.py: job_options
    id: str
    """Id of the job, unique in its queue. A second job with the same id is not added."""
    priority: int
    """Higher runs first, from 0 to 2,097,151. Default: 0."""
    lifo: bool
    """Put the job before the others of its priority instead of after them."""
    delay: Seconds
    """Start the job after this time."""
    at: datetime
    """Start the job at this time."""
    ttl: Seconds | None
    """Fail the job as expired if it has not started within this time after it was due."""
    result_ttl: Seconds
    """How long to keep the job's record after it ends. Default: the queue's retention."""
    retry: Retry | int
    """Retries after failed runs. Default: as declared by the task."""
    timeout: Seconds | None
    """Time limit of one run. Default: as declared by the task."""
    max_stalls: int
    """How often the job may lose its worker before it fails. Default: as declared by the task."""
    key: str
    """Key of the job, in a keyed queue."""
    cost: int
    """How much of the queue's rate the job takes. Default: 1."""
    unique: Unique | bool
    """Add the job only if no other has the same arguments."""
    after: Sequence[Job[Any] | SyncJob[Any]]
    """Jobs that must end before this one starts."""
    on_child_failure: ChildPolicy
    """What a failed child does to the job: fail, ignore or continue. Default: fail."""
    meta: Mapping[str, str]
    """Strings to store with the job."""
    call_timeout: Seconds
    """How long `task.call(…)` waits for the result. Default: 30 s."""
    # end scripts/options.py


class TaskOptions(JobOptions, total=False):
    """Options of a task: defaults for its calls, and how workers run it. Here `key` is the name of
    the parameter that holds the key."""

    # begin scripts/options.py: task_options
    name: str
    """Name of the task. Default: that of the function."""
    aliases: Sequence[str] | Mapping[str, Upgrader | None]
    """Former names of the task."""
    schedule: Cron | Every | None
    """When the task runs by itself."""
    executor: ExecutorName
    """Where the task runs: `inline` (async functions), `thread` (plain ones), `process`."""
    grace: Seconds
    """How long a run may take to stop when it is asked to. Default: the worker's."""
    permissions: Permissions
    """What the task may do in a child process."""
    # end scripts/options.py


Fields = dict[str, Any]
"""Fields of a JobSpec."""


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


_PARSE: dict[str, Callable[[Any], Any]] = {
    **{name: option.parse or option.check for name, option in BY_NAME.items()},
    "after": _edges,
    "unique": Unique.of,
}
"""Option → the value of its field. `id`, `delay`, `at`, `unique` and `call_timeout` do more: see
`Resolved`."""
_FIELDS = {name: option.field for name, option in BY_NAME.items()}
_OF_JOB = BY_NAME.keys()
_OF_WORKER_ONLY = frozenset(option.name for option in TASK_OPTIONS)
_OF_TASK = _OF_JOB | _OF_WORKER_ONLY
_OF_ONE_JOB = frozenset(name for name, option in BY_NAME.items() if not option.queue)
_OF_WORKER = _OF_WORKER_ONLY | {name for name, option in BY_NAME.items() if option.by_worker}


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
        for name, given in options.items():
            value = _PARSE[name](given)
            if name == "unique":
                unique = value
            elif name == "call_timeout":
                call_timeout_ms = value
            elif name == "id":
                fields.update(id=value, given_id=True)
            elif name == "delay":
                fields.update(delay_ms=value, at_ms=None)
            elif name == "at":
                fields.update(at_ms=value, delay_ms=0)
            else:
                fields[_FIELDS[name]] = value
        all_given = {**self.given, **options}
        for one, other in (("delay", "at"), ("at", "delay")):
            if one in options:
                all_given.pop(other, None)
        return Resolved(
            fields, unique, None if "key" in options else key_parameter, call_timeout_ms, all_given
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
