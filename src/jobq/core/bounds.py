"""How many jobs may wait in a queue (`max_waiting`), and which jobs count.

Waiting, delayed and blocked jobs count, and so do places that flows have reserved and not filled
yet. Only a new job is refused. A duplicate adds nothing, so it is never refused. Neither are jobs
that come back (a retry, a stall, a release, an unblocked job, a rerun), the follow-up of a
keep_last job, and dead-letter copies: refusing them would lose work that was accepted before.
"""

from __future__ import annotations

from collections.abc import Sequence

from jobq.core.records import JobKey, JobSpec
from jobq.core.states import State
from jobq.errors import AcceptedJob, QueueFull

COUNTED = (State.WAITING, State.DELAYED, State.BLOCKED)
"""The states that count towards `max_waiting`. lua/bounds.lua (J.room) adds up the same ones."""


def share(max_waiting: int, partitions: int) -> int:
    """How many jobs one partition may hold.

    Rounded up, so that all partitions together hold at least `max_waiting`.
    """
    return -(-max_waiting // partitions)


def free(max_waiting: int, counted: int, reserved: int) -> int:
    """How many new jobs fit.

    Negative if jobs came back to a full queue, or if the limit was lowered.
    """
    return max_waiting - counted - reserved


def depend_on_each_other(specs: Sequence[JobSpec]) -> bool:
    """Whether some of these specs wait for others of them.

    Such specs are accepted together or refused together, so that no job waits for one that was
    refused.
    """
    if not any(spec.after for spec in specs):
        return False
    own = {JobKey(spec.queue, spec.id) for spec in specs}
    return any(edge.job in own for spec in specs for edge in spec.after)


def queue_full(
    queue: str, max_waiting: int, *, accepted: Sequence[AcceptedJob] = (), refused: int = 1
) -> QueueFull:
    """The error for a caller whose jobs did not fit."""
    bulk = (
        f"Accepted: {len(accepted):,} jobs (see `error.accepted`), refused: {refused:,}. "
        if accepted or refused > 1
        else ""
    )
    return QueueFull(
        f"queue {queue!r} is full: max_waiting={max_waiting} limits how many jobs may be waiting, "
        f"delayed or blocked. {bulk}Enqueue again when workers have caught up, or raise the limit "
        "with queue.set_limits(max_waiting=…)",
        queue,
        max_waiting,
        accepted,
        refused,
    )
