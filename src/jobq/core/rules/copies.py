"""The rules of a copy to another store: which jobs can move, and what they are there.

A job is never in circulation in two stores. The copy first takes the job out of circulation in the
source (its due time moves about 5,000 years ahead), then puts it into the target under the same id,
then removes it from the source. Each step can be repeated, so a copy that was killed is continued
by running it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from jobq.core.records.defaults import DAY_MS
from jobq.core.records.jobs import JobRecord, JobSpec
from jobq.core.records.queues import ScheduleRecord, ScheduleSpec
from jobq.core.records.states import State
from jobq.core.rules.options import FIELDS
from jobq.errors import InvalidJob

HELD_MS = 5_000 * 365 * DAY_MS
"""What a copy adds to the due time of a job to take it out of circulation: about 5,000 years. The
sum still has the original time, and it is earlier than the year 9999, the last that stores can
represent."""
_LATEST_MS = 1_000 * 365 * DAY_MS
"""Jobs that are due later than this, about the year 2970, move without being held: no worker claims
them meanwhile."""

Obstacle = Literal["flow", "saved", "unique", "full", "invalid", "id", "started"]
"""Why a job stays in the source.

`flow`: it waits for others, or others wait for it. `saved`: it has run, and has saved steps or a
state that only its store can deliver. `unique`: another job of the target holds its unique lock.
`full`: the target has reached `max_waiting`. `invalid`: the target refuses it, for example because
it costs more than the bucket there holds. `id`: the target has another job with the id of this
failed one. `started`: a worker claimed it, or someone changed it,
while it was being copied.
"""


def is_held(due_ms: int | None) -> bool:
    """Whether a copy has taken a job with this due time out of circulation."""
    return due_ms is not None and HELD_MS <= due_ms < HELD_MS + _LATEST_MS


def can_hold(due_ms: int) -> bool:
    """Whether a job that is due then must be held while it is copied."""
    return due_ms < _LATEST_MS


def released(due_ms: int) -> int:
    """The due time of a job, held or not."""
    return due_ms - HELD_MS if is_held(due_ms) else due_ms


def held_times(due: list[int]) -> list[int]:
    """The due times that hold these jobs. They rise by at least 1 ms from job to job, so that the
    order of the jobs is known even if the copy is killed."""
    times: list[int] = []
    last = 0
    for each in due:
        if can_hold(each):
            last = max(each, last + 1)
        times.append(HELD_MS + last if can_hold(each) else each)
    return times


def obstacle(record: JobRecord) -> Obstacle | None:
    """Why this job, which is neither active nor completed, cannot move. None if it can."""
    if record.state is State.BLOCKED or record.parents or record.children:
        return "flow"
    unfinished = record.state is not State.FAILED
    return "saved" if unfinished and (record.saved is not None or record.steps) else None


def spec_of(record: JobRecord, *, due_ms: int, now_ms: int) -> JobSpec:
    """The spec that makes this job again in another store.

    Its delay becomes a time, and a ttl that has begun becomes what is left of it. A ttl no longer
    applies to a job that has started. Attempts, failures and stalls start at 0.
    """
    copied = {option.field: option.of(record) for option in _COPIED}
    ttl_ms = None if record.attempt else record.options.ttl_ms
    if ttl_ms is not None and due_ms < now_ms:
        ttl_ms = max(1, due_ms + ttl_ms - now_ms)
    copied["ttl_ms"] = ttl_ms
    if due_ms > now_ms:
        copied["at_ms"] = due_ms
    return JobSpec(
        queue=record.queue, id=record.id, name=record.name, payload=record.payload, **copied
    )


_COPIED = [each for each in FIELDS if each.field not in ("delay_ms", "after", "reserved")]
"""The options of a spec that records have. A delay becomes a time, and jobs of flows stay."""


def check_failed(records: Sequence[JobRecord]) -> None:
    """Raise InvalidJob if a record is not one of a failed job."""
    for record in records:
        if record.state is not State.FAILED or record.failure is None:
            raise InvalidJob(
                f"job {record.id!r} ({record.name}) is {record.state.value}: "
                "only failed jobs can be restored"
            )


def failed_spec(record: JobRecord) -> JobSpec:
    """The spec of a failed job, for the store that restores it."""
    return spec_of(record, due_ms=0, now_ms=0)


def stalls_before(record: JobRecord) -> int:
    """The stalls of a failed job before the one that failed it, if it was a stall."""
    stalled = record.failure is not None and record.failure.reason == "stalled"
    return max(0, record.stalls - stalled)


# ── schedules ─────────────────────────────────────────────────────────────────────────────────────

_PARKED = "$jobq.copy"
"""Marks a parked schedule. Its template's `schedule` begins with this word: nothing else uses that
field of a template, and the job of a schedule has the schedule's id there."""


class Parked(msgspec.Struct, frozen=True, kw_only=True):
    """What a parked schedule will be: its spec, its next time, and whether it is paused."""

    spec: ScheduleSpec
    next_ms: int | None
    paused: bool


def park(record: ScheduleRecord, *, paused: bool) -> ScheduleSpec:
    """A stand-in for the schedule in the target. Stored without a next time, it never fires.

    It has everything that is needed to finish the copy without the source: `template.schedule` has
    what else it differs in from the schedule.
    """
    spec = record.spec
    if spec.limit is not None:
        spec = msgspec.structs.replace(spec, limit=spec.limit - record.fired)
    next_ms = "-" if record.next_ms is None else record.next_ms
    changes = f"{_PARKED} {next_ms} {int(paused)} {int(spec.after_complete)}"
    return msgspec.structs.replace(
        spec,
        after_complete=False,  # the end of a job must not start the stand-in
        template=msgspec.structs.replace(spec.template, schedule=changes),
    )


def parked(record: ScheduleRecord) -> Parked | None:
    """What a stand-in will be. None if the schedule is not one."""
    spec = record.spec
    word, *rest = (spec.template.schedule or "").split(" ")
    if word != _PARKED or len(rest) != 3:
        return None
    next_ms, paused, after_complete = rest
    return Parked(
        spec=msgspec.structs.replace(
            spec,
            after_complete=after_complete == "1",
            template=msgspec.structs.replace(spec.template, schedule=None),
        ),
        next_ms=None if next_ms == "-" else int(next_ms),
        paused=paused == "1",
    )


def is_over(record: ScheduleRecord) -> bool:
    """Whether a schedule makes no more jobs, so that there is nothing to copy."""
    spec = record.spec
    if spec.limit is not None and record.fired >= spec.limit:
        return True
    return record.next_ms is None and not spec.after_complete
