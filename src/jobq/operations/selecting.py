"""The criteria that a user gives for jobs, checked: core's `Criteria` are made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, TypedDict

from jobq.core.records.criteria import Criteria
from jobq.core.records.states import State
from jobq.core.values import checks
from jobq.core.values.codec import JSON
from jobq.core.values.meta import check_meta
from jobq.core.values.units import moment
from jobq.errors import InvalidJob

TIMES = ("created_after", "created_before", "ended_after", "ended_before")
_ORDER = (
    State.BLOCKED,
    State.DELAYED,
    State.WAITING,
    State.ACTIVE,
    State.COMPLETED,
    State.FAILED,
    State.CANCELLED,
)
"""The order in which states are read. A job that moves on meanwhile is found in a later one."""


class JobCriteria(TypedDict, total=False):
    """Which jobs to find or select. In `name` and `error`, `*` stands for any text.

    None excludes no job. A job matches from `…_after` on and before `…_before`; one that has not
    ended matches no time of its end. A name in `arguments` is that of a parameter, or a position
    ("0") if this process does not have the task's function.
    """

    name: str | None
    key: str | None
    error: str | None
    meta: Mapping[str, str] | None
    arguments: Mapping[str, Any] | None
    created_after: datetime | None
    created_before: datetime | None
    ended_after: datetime | None
    ended_before: datetime | None


def make_criteria(states: Sequence[State | str], given: JobCriteria) -> Criteria:
    """The criteria that a user gave. InvalidJob names the one that is wrong."""
    checks.check_known(given, JobCriteria.__annotations__, "criterion")
    times = {
        f"{name}_ms": checks.to_epoch_ms(given[name], name)  # type: ignore[literal-required]
        for name in TIMES
        if given.get(name) is not None
    }
    name, key, error = given.get("name"), given.get("key"), given.get("error")
    return Criteria(
        states=tuple(sorted({check_state(state) for state in states}, key=_ORDER.index)),
        name=None if name is None else checks.check_task_name(name),
        key=None if key is None else checks.check_key(key),
        error=None if error is None else _check_error(error),
        meta=check_meta(given.get("meta") or {}) or {},
        arguments=_check_arguments(given.get("arguments")),
        **times,
    )


def criteria_of_request(
    states: Sequence[str], times: Mapping[str, int], *, name: str, error: str, **more: Any
) -> Criteria:
    """The criteria of a request. `times` are milliseconds; empty texts exclude no job."""
    return make_criteria(
        states,
        {
            "name": name or None,
            "error": error or None,
            **{  # type: ignore[typeddict-item]  # the rest are names of JobCriteria
                option: moment(checks.check_int(ms, f"{option}_ms", high=checks.MAX_EPOCH_MS))
                for option, ms in times.items()
            },
            **more,
        },
    )


def check_state(value: object) -> State:
    """The state that a user named. InvalidJob if there is no such state."""
    return State(checks.check_choice(value, "state", [state.value for state in State]))


def _check_error(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidJob(f"error={checks.shown(value)} is not a pattern such as 'Timeout*'")
    return value


def _check_arguments(value: object) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidJob(f"arguments={checks.shown(value)} is not a map of names to values")
    arguments = {str(name): wanted for name, wanted in value.items()}
    JSON.encode(arguments)  # InvalidJob has the path of what no job can contain
    return arguments
