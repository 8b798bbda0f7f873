"""Options of a job, checked once and laid ready: per call there is then only a record to fill in.

`options(...)` → `Options` → `SpecTemplate` → one `JobSpec` per call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from jobq.core import checks
from jobq.core.checks import shown, to_ms
from jobq.core.ids import new_id
from jobq.core.policies import Cron, Every, Permissions, Retry, Unique
from jobq.core.records import ChildPolicy, Edge, JobSpec, QueueName, RetryData, UniqueSpec
from jobq.errors import InvalidJob


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What a call says about its job, checked. The defaults are a job's defaults."""

    id: str | None = None
    delay_ms: int = 0
    at_ms: int | None = None
    priority: int = 0
    lifo: bool = False
    retry: RetryData | None = None
    max_stalls: int = 3
    timeout_ms: int | None = None
    ttl_ms: int | None = None
    result_ttl_ms: int | None = None
    after: tuple[Any, ...] = ()  # handles of jobs in the same flow, as they were given
    unique: Unique | None = None
    cost: int = 1
    key: str | None = None
    wait_ms: int | None = None
    on_child_failure: ChildPolicy = "fail"


class TaskConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What a decorator says about its task, checked: some for the worker, the rest as defaults for every call."""

    name: str | None = None
    retry: Retry = Retry()
    timeout_ms: int = 0  # 0: none
    executor: str | None = None  # None: inline for async functions, thread for the others
    permissions: Permissions | None = None
    schedule: Cron | Every | None = None
    key_parameter: str | None = None  # the parameter that holds the key
    options: Options = Options()


_CHILD_POLICIES = ("fail", "ignore", "continue")
EXECUTORS = ("inline", "thread", "process", "command")

_JOB_CHECKS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "id": ("id", checks.check_id),
    "delay": ("delay_ms", checks.check_delay),
    "at": ("at_ms", checks.check_at),
    "priority": ("priority", checks.check_priority),
    "lifo": ("lifo", lambda value: checks.check_bool(value, "lifo")),
    "retry": ("retry", lambda value: Retry.of(value).data),
    "max_stalls": ("max_stalls", checks.check_max_stalls),
    "timeout": ("timeout_ms", checks.check_timeout),
    "ttl": ("ttl_ms", checks.check_ttl),
    "result_ttl": ("result_ttl_ms", checks.check_result_ttl),
    "after": ("after", lambda value: _after(value)),
    "unique": ("unique", Unique.of),
    "cost": ("cost", checks.check_cost),
    "key": ("key", checks.check_key),
    "wait": ("wait_ms", lambda value: None if value is None else to_ms(value, "wait")),
    "on_child_failure": ("on_child_failure", lambda value: checks.check_choice(value, "on_child_failure", _CHILD_POLICIES)),
}

JOB_OPTIONS = tuple(_JOB_CHECKS)
TASK_OPTIONS = (*JOB_OPTIONS, "name", "schedule", "executor", "permissions")


def check_options(given: Mapping[str, Any], onto: Options | None = None) -> Options:
    """The options of a call, laid over those it had. InvalidJob names an option that is unknown or has a bad value."""
    if not given:
        return Options() if onto is None else onto
    checks.check_known(given, JOB_OPTIONS)
    if "delay" in given and "at" in given:
        raise InvalidJob(f"delay={shown(given['delay'])} and at={shown(given['at'])}: give one of the two")
    fields = {field: check(given[option]) for option, (field, check) in _JOB_CHECKS.items() if option in given}
    if "at_ms" in fields:
        fields["delay_ms"] = 0  # the later word wins over a delay of the task's
    elif "delay_ms" in fields:
        fields["at_ms"] = None
    return Options(**fields) if onto is None else msgspec.structs.replace(onto, **fields)


def check_task_options(given: Mapping[str, Any]) -> TaskConfig:
    """The options of a decorator. `retry`, `timeout` and `executor` are the worker's; `key` names a parameter."""
    checks.check_known(given, TASK_OPTIONS)
    for option in ("id", "at", "after"):
        if option in given:
            raise InvalidJob(f"{option}={shown(given[option])} is for one call: use .options({option}=…)")
    worker = {"name", "schedule", "executor", "permissions", "retry", "timeout", "key"}
    return TaskConfig(
        name=checks.check_task_name(given["name"]) if "name" in given else None,
        retry=Retry.of(given["retry"]) if "retry" in given else Retry(),
        timeout_ms=checks.check_timeout(given.get("timeout")),
        executor=checks.check_choice(given["executor"], "executor", EXECUTORS) if "executor" in given else None,
        permissions=_instance(given, "permissions", Permissions),
        schedule=_instance(given, "schedule", (Cron, Every)),
        key_parameter=_parameter(given["key"]) if "key" in given else None,
        options=check_options({option: value for option, value in given.items() if option not in worker}),
    )


def _after(value: Any) -> tuple[Any, ...]:
    if isinstance(value, (list, tuple)):
        return tuple(value)
    raise InvalidJob(f"after={shown(value)} is not a list of jobs")


def _parameter(value: object) -> str:
    if isinstance(value, str) and value.isidentifier():
        return value
    raise InvalidJob(f"key={shown(value)} is not the name of a parameter: in a decorator, key says which one holds the key")


def _instance(given: Mapping[str, Any], option: str, types: type | tuple[type, ...]) -> Any:
    value = given.get(option)
    if value is None or isinstance(value, types):
        return value
    names = " or ".join(cls.__name__ for cls in (types if isinstance(types, tuple) else (types,)))
    raise InvalidJob(f"{option}={shown(value)} is not a {names}")


class SpecTemplate:
    """Everything of a JobSpec that is the same for all calls with the same options."""

    __slots__ = ("_codec", "_fixed", "_given_id", "_name", "_queue")

    def __init__(self, queue: QueueName, name: str, codec: str, options: Options) -> None:
        self._queue = queue
        self._name = name
        self._codec = codec
        self._given_id = options.id
        defaults = Options()
        self._fixed = {
            field: getattr(options, field) for field in _CARRIED if getattr(options, field) != getattr(defaults, field)
        }

    def spec(
        self,
        payload: bytes,
        *,
        key: str | None = None,
        unique: UniqueSpec | None = None,
        after: tuple[Edge, ...] = (),
        watch: bool = False,
    ) -> JobSpec:
        """The spec of one call. `key` (one found in the arguments) gives way to one in the options."""
        fields = self._fixed
        if key is not None or unique is not None or after or watch or self._given_id is not None:
            fields = {"key": key, "unique": unique, "after": after, "watch": watch, **fields}
            if self._given_id is not None:
                return self._make(self._given_id, payload, {**fields, "given_id": True})
        return self._make(new_id(), payload, fields)

    def _make(self, id: str, payload: bytes, fields: Mapping[str, Any]) -> JobSpec:
        return JobSpec(queue=self._queue, id=id, name=self._name, payload=payload, codec=self._codec, **fields)


# The fields a spec takes over from the options as they are.
_CARRIED = (
    "delay_ms", "at_ms", "priority", "lifo", "retry", "max_stalls", "timeout_ms", "ttl_ms", "result_ttl_ms", "cost", "key",
    "on_child_failure",
)  # fmt: skip
