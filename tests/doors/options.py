"""The values of the family as options of the public API, which has its own units and words."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from jobq import Queue, Retry, Unique
from jobq.api.task import Task
from jobq.core.rules.options import BY_NAME, FIELDS
from jobq.core.values.checks import MAX_EPOCH_MS
from jobq_conformance.spec_values import Case

SAME = frozenset(
    {"id", "name"}
    | {
        name
        for name, option in BY_NAME.items()
        if name == option.field and option.kind not in ("retry", "unique", "jobs")
    }
)
"""Fields that the API calls by the same name: it refuses their values in the same words."""
TIMES = {
    option.field: name
    for name, option in BY_NAME.items()
    if option.field and option.kind in ("span", "moment")
}
PARTS = {
    "retry.max_retries": ("max_retries", Retry),
    "retry.base_ms": ("base", Retry),
    "retry.factor": ("factor", Retry),
    "retry.cap_ms": ("cap", Retry),
    "retry.jitter": ("jitter", Retry),
    "unique.mode": ("mode", Unique),
    "unique.ttl_ms": ("period", Unique),
}
_NONE_IS_NO_OPTION = frozenset(option.field for option in FIELDS if option.default is None)
"""Fields that are None without the option. An option that may be None means something else."""


def expresses(case: Case) -> bool:
    """Whether a caller of the API can give this value for the field."""
    field, value = case
    if field not in SAME and field not in TIMES and field not in PARTS:
        return False
    if value is None and field in _NONE_IS_NO_OPTION:
        return False
    if not field.endswith("_ms"):
        return True
    if isinstance(value, float) or (
        isinstance(value, int) and value == 0 and field == "timeout_ms"
    ):
        return False  # seconds may have a fraction; no timeout is None
    if field == "at_ms":
        return isinstance(value, bool) or not isinstance(value, int) or 0 <= value <= MAX_EPOCH_MS
    return True


def option_of(case: Case) -> Any:
    """The value as the API takes it."""
    field, value = case
    if not field.endswith("_ms") or not isinstance(value, int) or isinstance(value, bool):
        return value
    if field == "at_ms":
        return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=value)
    return timedelta(milliseconds=value) if abs(value) < 10**15 else value


def options_of(case: Case) -> Mapping[str, Any]:
    """The options that set the field. Raises what making them raises."""
    field, value = case.field, option_of(case)
    if field in TIMES:
        return {TIMES[field]: value}
    if field in PARTS:
        name, policy = PARTS[field]
        if policy is Unique:
            return {"unique": Unique(**{"period": 60, name: value})}
        return {"retry": Retry(**{name: value})}
    return {} if field == "name" else {field: value}


def call_of(queue: Queue, id: str, case: Case) -> Task[..., Any]:
    """The task whose call has the value. Its job has this id, unless the case gives another."""
    name: Any = case.value if case.field == "name" else "step"
    return queue.task_by_name(name, **{"id": id, **options_of(case)})
