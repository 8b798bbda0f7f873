"""Which queues are plain, so that single statements may change their jobs (fast.py)."""

from __future__ import annotations

from jobq.core.queues import NO_DEFAULTS, Limits
from jobq.core.retention import by_state
from jobq.core.states import State
from jobq.errors import CorruptStore
from jobq.stores.relational.rows import QueueRow, Row


def is_plain(queue: QueueRow, now: int) -> bool:
    """Whether single statements may put, complete and claim jobs of the queue (fast.py)."""
    if queue.mode != "plain" or queue.paused or not queue.listed or queue.held_ms > now:
        return False
    try:
        stored = queue.settings
    except CorruptStore:
        return False
    return (
        stored.effective == Limits()
        and not stored.frail
        and not stored.event_meta
        and stored.defaults == NO_DEFAULTS
    )


def saved(queue: QueueRow, now: int) -> Row:
    """The parameters of `save_queue`."""
    try:
        kept_ms = by_state(queue.settings.retention, State.COMPLETED)
    except CorruptStore:
        kept_ms = 0  # not read: the queue is not plain
    return (
        queue.mode,
        queue.paused,
        queue.listed,
        queue.held_ms,
        queue.rate,
        queue.packed_settings,
        queue.reserved,
        is_plain(queue, now),
        kept_ms,
        queue.qid,
    )
