"""Checks of a flow before any of it is stored.

It must be a graph without cycles, and all its edges must lead to jobs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

from jobq.core.commands import APPLIES
from jobq.core.new_jobs import Checked, check_specs
from jobq.core.records import JobKey, JobRecord, JobSpec, QueueName
from jobq.errors import InvalidJob

Lock = tuple[QueueName, str]
_REVIVED = APPLIES["revive"].states


def check_flow(specs: Sequence[JobSpec]) -> Checked:
    """The jobs of a flow, each after those it waits for.

    InvalidJob if one of them is not valid (core/new_jobs.py), if two jobs have one id or one unique
    lock, or if there are two tenants or a cycle. The store checks whether the jobs outside the flow
    exist that an edge leads to.
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
