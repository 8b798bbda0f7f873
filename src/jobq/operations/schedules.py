"""Schedules: what they make, and finding, pausing, running and removing them."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from jobq.core.records.jobs import JobSpec, QueueName
from jobq.core.records.queues import ScheduleRecord
from jobq.core.rules.new_jobs import check_schedule_id, refuse_after
from jobq.errors import InvalidJob, JobNotFound
from jobq.stores.base import Store

MAX_SCHEDULES = 10_000
"""Schedules that one listing of a queue returns."""


def template(spec: JobSpec, id: str) -> JobSpec:
    """The job that a schedule makes. InvalidJob if it has options that only fit a single job.

    Two templates of the same call are equal, so storing the same schedule again changes nothing."""
    if spec.given_id:
        raise InvalidJob(
            f"schedule {id!r}: id={spec.id!r} would be the id of all its jobs; leave it out, "
            "each job gets an id made of the schedule's id and its time"
        )
    if spec.delay_ms or spec.at_ms is not None:
        raise InvalidJob(
            f"schedule {id!r}: the schedule decides when jobs run; leave out delay and at"
        )
    if spec.after:
        raise refuse_after(id)
    return replace(spec, id=id)


async def of_queues(
    store: Store, names: Sequence[QueueName], *, limit: int = MAX_SCHEDULES
) -> list[ScheduleRecord]:
    """The schedules of these queues, `limit` at most."""
    found: list[ScheduleRecord] = []
    for queue in names:
        if len(found) >= limit:
            break
        found += await store.list_schedules(queue, limit=limit - len(found))
    return found


async def find(store: Store, queue: QueueName, id: str) -> ScheduleRecord:
    """The schedule of that id. Raises JobNotFound."""
    for record in await store.list_schedules(queue, limit=MAX_SCHEDULES):
        if record.spec.id == id:
            return record
    raise JobNotFound(missing(queue.queue, id))


async def extra_job(store: Store, queue: QueueName, id: str, suffix: str) -> JobSpec:
    """The job of a schedule, to run now. Its count and its next time do not change by it."""
    spec = (await find(store, queue, check_schedule_id(id))).spec
    return replace(
        spec.template,
        id=f"{id}@{suffix}",
        # When a job of an after-complete schedule ends, the schedule sets its next time. This extra
        # job must not do that.
        schedule=None if spec.after_complete else id,
    )


async def set_paused(
    store: Store, queue: QueueName, id: str, paused: bool, actor: str | None = None
) -> bool:
    """Pause or resume a schedule. False if it is in that state already. Raises JobNotFound."""
    id = check_schedule_id(id)
    reply = await store.pause_schedule(queue, id, paused=paused, actor=actor)
    if reply == "missing":
        raise JobNotFound(missing(queue.queue, id))
    return reply == "done"


async def remove(store: Store, queue: QueueName, id: str, actor: str | None = None) -> None:
    """Remove a schedule. The jobs it made stay. Raises JobNotFound."""
    if not await store.drop_schedule(queue, check_schedule_id(id), actor=actor):
        raise JobNotFound(missing(queue.queue, id))


def missing(queue: str, id: str) -> str:
    """What a caller is told who names a schedule that does not exist."""
    return f"there is no schedule {id!r} in queue {queue!r}"
