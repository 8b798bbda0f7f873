"""The job that a schedule makes again and again, and the schedule's id."""

from __future__ import annotations

from msgspec.structs import replace

from jobq.core import checks
from jobq.core.checks import shown
from jobq.core.records import JobSpec
from jobq.errors import InvalidJob

MAX_SCHEDULE_ID = 200
"""Characters of a schedule's id. Its jobs have longer ids, `schedule@milliseconds`, of up to
256."""


def check_schedule_id(id: object) -> str:
    """A schedule id: like a job id, but short enough for the ids of the schedule's jobs."""
    checked = checks.check_id(id, "schedule id")
    if len(checked) > MAX_SCHEDULE_ID:
        raise InvalidJob(
            f"schedule id={shown(id)} is too long: at most {MAX_SCHEDULE_ID} characters"
        )
    return checked


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
        raise InvalidJob(
            f"schedule {id!r}: after= names jobs that will have ended before the next time; "
            "add children in the handler instead"
        )
    return replace(spec, id=id)
