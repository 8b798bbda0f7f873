"""How long the record of an ended job is kept.

lua/record.lua (J.own_ttl, J.retention) copies `kept_ms`, and lua/put.lua (J.in_the_way) copies
`next_life`.
"""

from __future__ import annotations

from jobq.core.defaults import WATCHED_MS
from jobq.core.queues import RetentionData
from jobq.core.states import State


def by_state(retention: RetentionData, state: State) -> int | None:
    """The queue's retention for jobs that ended in this state, in milliseconds. None: forever."""
    if state is State.COMPLETED:
        return retention.completed_ms
    return retention.failed_ms if state is State.FAILED else retention.cancelled_ms


def kept_ms(
    retention: RetentionData,
    state: State,
    *,
    result_ttl_ms: int | None = None,
    watched: bool = False,
) -> int | None:
    """How long after its end a record can be read. None: forever.

    An explicit result_ttl takes precedence, except for cancelled jobs, which have no result. While
    a caller waits for the job (`watched`), the queue's retention leaves the caller time to read the
    result.
    """
    if result_ttl_ms is not None and state is not State.CANCELLED:
        return result_ttl_ms
    ms = by_state(retention, state)
    return max(ms, WATCHED_MS) if watched and ms is not None else ms


def next_life(life: int | None, *, expired: bool = False) -> int:
    """The life of a new job with the id of a job that was in this life; None: there is no record.

    A record that has expired is as good as removed, whether a store has removed it yet or not. So
    (id, life) may repeat: in the event log, the number of `accepted` distinguishes two jobs.
    """
    return 0 if life is None or expired else life + 1
