"""Last chances: a job whose next stall would fail it is claimed alone, so that it cannot take other jobs with it.

`Settings.frail` counts the waiting jobs that have stalled. While it is 0, which is nearly always, claims look no further.
"""

from __future__ import annotations

from typing import Any

from jobq.core.stalls import is_last_chance, max_stalls
from jobq.stores.sqlite.rows import unpack_options
from jobq.stores.sqlite.tx import HOT, QueueRow, Tx


def allowed(queue: QueueRow, name: str, packed: bytes | None) -> int:
    """How often a job with these options may stall."""
    return max_stalls(unpack_options(packed).max_stalls, name, queue.settings.max_stalls)


def is_last(queue: QueueRow, stalls: int, name: str, packed: bytes | None) -> bool:
    """Whether the next stall of the job fails it."""
    return stalls > 0 and is_last_chance(stalls, allowed(queue, name, packed))


def room(tx: Tx, queue: QueueRow, wanted: int, *, alone: bool) -> int:
    """How many jobs of the head of a plain queue go together: those before the first last chance, or that one alone.

    Without `alone` the reply has other jobs already, and a last chance at the head has to wait for the next claim."""
    rows = tx.execute(HOT["chances"], (queue.qid, tx.now, wanted)).fetchall()
    return _together([is_last(queue, *row) for row in rows], wanted, alone)


def together(queue: QueueRow, heads: list[Any], *, alone: bool) -> list[Any]:
    """The same for the heads of the lines of keys (see `next_keys`): those that go together."""
    return heads[
        : _together(
            [is_last(queue, head[9], head[5], head[15]) for head in heads], len(heads), alone
        )
    ]


def _together(last: list[bool], wanted: int, alone: bool) -> int:
    first = last.index(True) if True in last else None
    if first is None:
        return wanted
    return first or int(alone)
