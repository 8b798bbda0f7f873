"""Flows: whether one is valid before any of it is stored, and arguments that are other jobs'
results.

A flow must be a graph without cycles, and all its edges must lead to jobs.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any

from jobq.core.records.commands import APPLIES
from jobq.core.records.jobs import Failure, Input, JobKey, JobRecord, JobSpec, QueueName
from jobq.core.rules.new_jobs import Checked, check_specs
from jobq.core.values.codec import convert, get_codec
from jobq.errors import InvalidJob

Lock = tuple[QueueName, str]
_REVIVED = APPLIES["revive"].states


def check_flow(specs: Sequence[JobSpec]) -> Checked:
    """The jobs of a flow, each after those it waits for.

    InvalidJob if one of them is not valid (core/rules/new_jobs.py), if two jobs have one id or one
    unique lock, or if there are two tenants or a cycle. The store checks whether the jobs outside
    the flow exist that an edge leads to.
    """
    specs = check_specs(specs)
    members = _members(specs)
    check_locks(specs)
    order = TopologicalSorter(
        {
            key: [edge.job for edge in spec.after if edge.job in members]
            for key, spec in members.items()
        }
    )
    try:
        return Checked(members[key] for key in order.static_order())
    except CycleError as error:
        raise InvalidJob(f"the flow has a cycle: {_circle(error.args[1], members)}") from None


def _members(specs: Sequence[JobSpec]) -> dict[JobKey, JobSpec]:
    members: dict[JobKey, JobSpec] = {}
    for spec in specs:
        key = JobKey(spec.queue, spec.id)
        if key in members:
            raise InvalidJob(
                f"two jobs of the flow have the id {spec.id!r} in queue {spec.queue.queue!r}: "
                f"{_names(members[key], spec)}"
            )
        if spec.queue.tenant != specs[0].queue.tenant:
            raise InvalidJob(
                f"the flow has jobs of two tenants, {specs[0].queue.tenant!r} and "
                f"{spec.queue.tenant!r}: use one flow per tenant"
            )
        members[key] = spec
    return members


def check_locks(specs: Iterable[JobSpec], known: dict[Lock, str] | None = None) -> dict[Lock, str]:
    """The unique locks of a flow's members with the ids that need them, added to those already
    known.

    Two members with one lock are refused, like a repeated id. One of them would be a duplicate of
    the other, and a job that waits for both could wait for itself.
    """
    found = {} if known is None else known
    for spec in specs:
        if (
            spec.unique is not None
            and (other := found.setdefault((spec.queue, spec.unique.lock), spec.id)) != spec.id
        ):
            raise InvalidJob(
                f"jobs {other!r} and {spec.id!r} of the flow have the same unique lock in "
                f"queue {spec.queue.queue!r}: leave one out, or make their unique arguments differ"
            )
    return found


def _names(one: JobSpec, other: JobSpec) -> str:
    return one.name if one.name == other.name else f"{one.name} and {other.name}"


def revivals(members: Mapping[JobKey, JobRecord]) -> list[list[JobKey]]:
    """The members to revive when a flow is rerun: those that failed or were cancelled.

    They are in groups: each job is in a later group than the jobs it waits for. InvalidJob if
    members wait for each other in a circle, because an id was used again.
    """
    order = TopologicalSorter(
        {
            key: [child for child in record.children if child in members]
            for key, record in members.items()
        }
    )
    try:
        order.prepare()
    except CycleError as error:
        circle = " waits for ".join(key.id for key in reversed(error.args[1][:12]))
        raise InvalidJob(f"the flow has a cycle: {circle}") from None
    groups: list[list[JobKey]] = []
    while order:
        ready = order.get_ready()
        order.done(*ready)
        groups.append([key for key in ready if members[key].state in _REVIVED])
    return [group for group in groups if group]


def _circle(keys: Sequence[JobKey], members: dict[JobKey, JobSpec]) -> str:
    # graphlib lists the cycle in reverse, with the first job again at the end.
    shown = [f"{members[key].name} ({key.id})" for key in reversed(keys)]
    if len(shown) > 12:
        shown = [*shown[:6], "…", *shown[-5:]]
    return " waits for ".join(shown)


# Arguments that are the results of other jobs: `flow.add(email, [p.ref for p in paid])`.
#
# In a payload a reference is `{"$jobq.ref": [queue, id]}`, in any codec. The lease brings the
# results, and the worker replaces the references before it converts arguments to their annotations.

REF_KEY = "$jobq.ref"


class Ref:
    """The result of a job of the same tenant, as an argument of another job in a flow.

    It has no value of its own: only a flow can use it.
    """

    __slots__ = ("id", "queue")

    def __init__(self, queue: str, id: str) -> None:
        self.queue = queue
        self.id = id

    def __repr__(self) -> str:
        return f"<result of job {self.id!r} in {self.queue!r}, for flows only>"


def extract_refs(
    args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any], list[Ref]]:
    """The arguments as they are encoded, and the references that were found in them.

    References may be in lists, tuples and dicts, at any depth.
    """
    found: list[Ref] = []

    def swap(value: Any) -> Any:
        if isinstance(value, Ref):
            found.append(value)
            return {REF_KEY: [value.queue, value.id]}
        return value

    return _mapped(list(args), swap), _mapped(dict(kwargs), swap), found


def fill(
    args: list[Any], kwargs: dict[str, Any], inputs: Sequence[Input]
) -> tuple[list[Any], dict[str, Any]]:
    """Decoded arguments with results in place of references.

    A failed job's result is None (policy `ignore`) or its Failure (`continue`). A reference that
    has no input is left as it is.
    """
    by_job = {(given.job.queue.queue, given.job.id): given for given in inputs}

    def swap(value: Any) -> Any:
        if isinstance(value, dict) and len(value) == 1 and REF_KEY in value:
            given = by_job.get(tuple(value[REF_KEY]))
            return value if given is None else delivered(given)
        return value

    return _mapped(args, swap), _mapped(kwargs, swap)


def delivered(given: Input) -> Any:
    """The value that an input delivers, in plain values."""
    if given.failure is not None:
        return given.failure
    return None if given.result is None else get_codec(given.codec).decode(given.result)


def _mapped(value: Any, swap: Callable[[Any], Any]) -> Any:
    try:
        return _mapped_within(value, swap)
    except RecursionError:
        raise InvalidJob("the arguments are nested too deeply, or contain themselves") from None


def _mapped_within(value: Any, swap: Callable[[Any], Any]) -> Any:
    swapped = swap(value)
    if swapped is not value:
        return swapped
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return [_mapped_within(part, swap) for part in value]
    if isinstance(value, dict):
        return {key: _mapped_within(part, swap) for key, part in value.items()}
    return value


# ── annotations that mention Failure ──────────────────────────────────────────────────────────────


def mentions_failure(annotation: Any) -> bool:
    """Whether a value of this annotation may contain a Failure, as in `list[Receipt | Failure]`."""
    return annotation is Failure or any(map(mentions_failure, typing.get_args(annotation)))


def convert_beside_failures(value: Any, annotation: Any) -> Any:
    """Like `convert`, but Failures pass where the annotation allows them.

    msgspec itself allows them only beside a few types.
    """
    if isinstance(value, Failure):
        return convert(value, Failure if _allows_failure(annotation) else annotation)
    bare = without_failure(annotation)
    origin, arguments = typing.get_origin(bare), typing.get_args(bare)
    if isinstance(value, list) and origin in (list, Sequence) and mentions_failure(bare):
        return [convert_beside_failures(part, arguments[0]) for part in value]
    if isinstance(value, dict) and origin in (dict, Mapping) and mentions_failure(bare):
        return {
            convert(key, arguments[0]): convert_beside_failures(part, arguments[1])
            for key, part in value.items()
        }
    return convert(value, bare)


def without_failure(annotation: Any) -> Any:
    """A union without its Failure. Any other annotation is returned as it is."""
    if not _is_union(annotation):
        return annotation
    rest = tuple(part for part in typing.get_args(annotation) if part is not Failure)
    return typing.Union[rest]  # noqa: UP007 - computed, not written


def _allows_failure(annotation: Any) -> bool:
    return annotation is Failure or (
        _is_union(annotation) and Failure in typing.get_args(annotation)
    )


def _is_union(annotation: Any) -> bool:
    return typing.get_origin(annotation) in (typing.Union, types.UnionType)
