"""How many jobs may wait in a queue (`max_waiting`): what counts, what a partition's share is, and the words of a refusal.

Counted are the jobs that are waiting, delayed or blocked, and the places that flows reserved and have not filled yet.
Only a job that would be new is refused. A duplicate adds nothing, so it passes. Jobs that come back (a retry, a stall, a
release, an unblocked job, a rerun), the follow-up of a keep_last job and dead-letter copies are never refused: refusing
them would lose work that was accepted before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jobq.core.records import JobKey, JobSpec
from jobq.core.states import State
from jobq.errors import QueueFull

if TYPE_CHECKING:
    from jobq.api.job import Job

COUNTED = (State.WAITING, State.DELAYED, State.BLOCKED)
"""The states in which a job takes a place. lua/bounds.lua (J.room) adds up the same."""


def share(max_waiting: int, partitions: int) -> int:
    """What one partition may hold. Rounded up, so that the partitions together hold at least `max_waiting`."""
    return -(-max_waiting // partitions)


def free(max_waiting: int, counted: int, reserved: int) -> int:
    """Places left for new jobs. Below 0 where more came back than there was room for, or the limit was lowered."""
    return max_waiting - counted - reserved


def depend_on_each_other(specs: Sequence[JobSpec]) -> bool:
    """Whether some of these wait for others of them. A job must not wait for one that was refused, so such specs are
    accepted together or refused together."""
    if not any(spec.after for spec in specs):
        return False
    own = {JobKey(spec.queue, spec.id) for spec in specs}
    return any(edge.job in own for spec in specs for edge in spec.after)


def queue_full(
    queue: str, max_waiting: int, *, accepted: Sequence[Job[Any]] = (), refused: int = 1
) -> QueueFull:
    """The error a caller gets whose jobs did not fit."""
    bulk = (
        f"Accepted: {len(accepted):,} jobs (see `error.accepted`), refused: {refused:,}. "
        if accepted or refused > 1
        else ""
    )
    return QueueFull(
        f"queue {queue!r} is full: max_waiting={max_waiting} limits how many jobs may be waiting, delayed or blocked. {bulk}"
        "Enqueue again when workers have caught up, or raise the limit with queue.set_limits(max_waiting=…)",
        queue,
        max_waiting,
        accepted,
        refused,
    )
