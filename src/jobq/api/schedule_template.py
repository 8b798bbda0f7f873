"""The job that a schedule makes again and again."""

from __future__ import annotations

from msgspec.structs import replace

from jobq.core.new_jobs import refuse_after
from jobq.core.records import JobSpec
from jobq.errors import InvalidJob


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
