"""What holds a queue's starts back: its limit of active jobs, its rate, the rates of its keys."""

from __future__ import annotations

from typing import Any

from jobq.core.records import Limits, Tokens
from jobq.stores.sqlite.rows import ACTIVE
from jobq.stores.sqlite.tx import KEYED, QueueRow, Tx


def lowest_capacity(limits: Limits) -> int | None:
    """The most a job may cost to start at all."""
    capacities = [rate.capacity for rate in (limits.rate, limits.key_rate) if isinstance(rate, Tokens)]
    return min(capacities, default=None)


def room(tx: Tx, queue: QueueRow, wanted: int) -> int:
    """How many may start now, as far as the queue as a whole is concerned."""
    if queue.settings_blob is None and queue.held_ms == 0:
        return wanted
    if queue.held_ms > tx.now:
        return 0
    limits = queue.settings.effective
    if limits.limit is not None:
        wanted = min(wanted, limits.limit - tx.counts(queue.qid)[ACTIVE])
    return wanted


def by_cost(queue: QueueRow) -> bool:
    """Whether starts of a plain queue are paid for one by one."""
    return isinstance(queue.settings.effective.rate, Tokens)


def affordable(tx: Tx, queue: QueueRow, wanted: int) -> list[int]:
    """The head of the line, as far as the bucket can pay for it."""
    raise NotImplementedError


def keys_affordable(tx: Tx, queue: QueueRow, heads: list[Any]) -> list[tuple[str, int]]:
    """Which of the keys whose turn it is may start their next job, with that job."""
    return [(key, pk) for key, pk, _ in heads if pk is not None]


def started(tx: Tx, queue: QueueRow, rows: list[Any]) -> None:
    """Starts have happened: count them."""


def next_times(tx: Tx, queue: QueueRow) -> list[int]:
    """When something held may go on."""
    times = [queue.held_ms] if queue.held_ms > tx.now else []
    if queue.mode == "keyed":
        row = tx.execute(KEYED["next_held"], (queue.qid,)).fetchone()
        times += [row[0]] if row else []
    return times
