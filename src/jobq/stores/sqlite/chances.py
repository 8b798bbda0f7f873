"""Last chances: a job whose next stall would fail it is claimed alone, so that it cannot take other jobs with it.

`Settings.frail` counts the waiting jobs that have stalled. While it is 0, which is nearly always, claims look no further.
"""

from __future__ import annotations

from typing import Any

from jobq.core.stalls import is_last_chance, max_stalls
from jobq.stores.sqlite import rates
from jobq.stores.sqlite.rows import unpack_options
from jobq.stores.sqlite.tx import HOT, QueueRow, Tx


def allowed(queue: QueueRow, name: str, packed: bytes | None) -> int:
    """How often a job with these options may stall."""
    return max_stalls(unpack_options(packed).max_stalls, name, queue.settings.max_stalls)


def is_last(queue: QueueRow, stalls: int, name: str, packed: bytes | None) -> bool:
    """Whether the next stall of the job fails it."""
    return stalls > 0 and is_last_chance(stalls, allowed(queue, name, packed))


def room(tx: Tx, queue: QueueRow, wanted: int, *, alone: bool) -> int:
    """How many jobs at the head of a plain queue a claim may take together.

    These are the jobs before the first one that is on its last chance. If that job is at the head, the claim takes it and
    nothing else. Without `alone` it takes nothing, and the queue is added to `tx.last_chances` if the job could start now."""
    rows = tx.execute(HOT["chances"], (queue.qid, tx.now, wanted)).fetchall()
    together = _together([is_last(queue, *row) for row in rows], wanted, alone)
    if not together and rates.pays_for(queue, unpack_options(rows[0][2]).cost, tx.now):
        tx.last_chances.add(queue.qid)
    return together


def together(queue: QueueRow, heads: list[Any], *, alone: bool) -> list[Any]:
    """The same for a keyed queue: which of the next jobs of its keys (see `next_keys`) a claim may take together."""
    last = [is_last(queue, head[9], head[5], head[15]) for head in heads]
    return heads[: _together(last, len(heads), alone)]


def _together(last: list[bool], wanted: int, alone: bool) -> int:
    first = last.index(True) if True in last else None
    return wanted if first is None else first or int(alone)
