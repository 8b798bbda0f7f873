"""Last chances: a job whose next stall would fail it is claimed alone.

So it cannot stall other jobs.

`StoredSettings.frail` counts the waiting jobs that have stalled. While it is 0, which is nearly
always, claims do not look for jobs on their last chance.
"""

from __future__ import annotations

from typing import Protocol

from jobq.core.stalls import is_last_chance, max_stalls
from jobq.stores.relational import rates
from jobq.stores.relational.options import unpack_options
from jobq.stores.relational.rows import HeadOfQueue, KeyHead, QueueRow, read_all
from jobq.stores.relational.tx import Tx


class _Stalling(Protocol):
    """The columns of a job that decide whether it is on its last chance."""

    @property
    def stalls(self) -> int: ...

    @property
    def name(self) -> str: ...

    @property
    def options(self) -> bytes | None: ...


def allowed(queue: QueueRow, job: _Stalling) -> int:
    """How often the job may stall."""
    return max_stalls(unpack_options(job.options).max_stalls, job.name, queue.settings.max_stalls)


def is_last(queue: QueueRow, job: _Stalling) -> bool:
    """Whether the next stall of the job fails it."""
    return job.stalls > 0 and is_last_chance(job.stalls, allowed(queue, job))


def room(tx: Tx, queue: QueueRow, wanted: int, *, alone: bool) -> int:
    """How many jobs at the head of a plain queue one claim may return together.

    These are the jobs before the first one that is on its last chance. If that job is at the head,
    the claim returns it and nothing else. Without `alone` it returns nothing, and the queue is
    added to `tx.last_chances` if the job could start now."""
    rows = tx.execute(tx.sql.hot["head_facts"], (queue.qid, tx.now, wanted)).fetchall()
    jobs = read_all(rows, HeadOfQueue)
    together = _together([is_last(queue, job) for job in jobs], wanted, alone)
    if not together and rates.pays_for(queue, unpack_options(jobs[0].options).cost, tx.now):
        tx.last_chances.add(queue.qid)
    return together


def together(queue: QueueRow, heads: list[KeyHead], *, alone: bool) -> list[KeyHead]:
    """The same for the next jobs of keys: those that one claim may return together."""
    return heads[: _together([is_last(queue, head) for head in heads], len(heads), alone)]


def _together(last: list[bool], wanted: int, alone: bool) -> int:
    first = last.index(True) if True in last else None
    return wanted if first is None else first or int(alone)
