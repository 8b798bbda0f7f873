"""Places for new jobs under a queue's max_waiting, and those that flows reserve. The rule is
`core.bounds`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from jobq.core import bounds
from jobq.core.event_log import STATE_CODES
from jobq.core.records import JobSpec, PutResult, QueueName
from jobq.stores.relational import locks
from jobq.stores.relational.codes import CANCELLED, ENDED
from jobq.stores.relational.rows import Job, QueueRow
from jobq.stores.relational.tx import Tx

_COUNTED = tuple(STATE_CODES[state] for state in bounds.COUNTED)


def room(tx: Tx, queue: QueueRow) -> int | None:
    """How many new jobs the queue accepts; None: any number."""
    most = queue.settings.effective.max_waiting
    if most is None:
        return None
    return bounds.free(most, sum(tx.count(queue, state) for state in _COUNTED), queue.reserved)


def adds(tx: Tx, queue: QueueRow, spec: JobSpec) -> bool:
    """Whether a spec would add a job that max_waiting may refuse.

    Duplicates add none. The follow-up of a `keep_last` job is never refused.
    """
    old = tx.look(queue.qid, spec.id)
    if old is not None and keeps_id(tx, old):
        return False
    return spec.unique is None or locks.is_free_for(tx, queue.qid, spec.unique)


def keeps_id(tx: Tx, job: Job) -> bool:
    """Whether a new job with the id of this one is a duplicate.

    It is not if this one was cancelled, or if it has ended and its record has expired."""
    return job.state != CANCELLED and not is_expired(tx, job)


def is_expired(tx: Tx, job: Job) -> bool:
    """Whether the job has ended and its record has expired: only upkeep still finds it."""
    return job.state in ENDED and (job.at_ms or 0) <= tx.now


def needed(tx: Tx, queue: QueueRow, specs: Sequence[JobSpec]) -> int:
    """How many places these specs of one queue need, none of which is stored yet."""
    names = {
        spec.id if spec.unique is None else f"\0{spec.unique.lock}": spec
        for spec in reversed(specs)
    }
    return sum(adds(tx, queue, spec) for spec in names.values())


def refused(queue: QueueRow, spec: JobSpec) -> PutResult:
    """The result for a job that the full queue refuses."""
    return PutResult(id=spec.id, life=0, state=None, full=queue.settings.effective.max_waiting)


# ── flows ─────────────────────────────────────────────────────────────────────────────────────────


def reserve(tx: Tx, specs: Sequence[JobSpec]) -> list[bool]:
    """Reserve a place for each of these new members of a flow that needs one.

    Returns which of them do. QueueFull if they do not all fit.
    """
    by_queue: dict[QueueName, list[int]] = {}
    for n, spec in enumerate(specs):
        by_queue.setdefault(spec.queue, []).append(n)
    takes = [True] * len(specs)
    for name, indexes in by_queue.items():
        queue = tx.ensure_queue(name)
        left = room(tx, queue)
        if left is not None and left < len(indexes):
            for n in indexes:
                takes[n] = adds(tx, queue, specs[n])
            if sum(takes[n] for n in indexes) > max(0, left):
                most = queue.settings.effective.max_waiting or 0
                raise bounds.queue_full(name.queue, most, refused=len(specs))
        queue.reserved += sum(takes[n] for n in indexes)
        queue.dirty = True
    return takes


def give_back(tx: Tx, reserved: Iterable[tuple[QueueName, int]]) -> None:
    """Free places that members of a flow have reserved: they are jobs now, or never will be."""
    freed: dict[QueueName, int] = {}
    for name, n in reserved:
        if n:
            freed[name] = freed.get(name, 0) + n
    tx.lock_queues(freed)
    for name, n in freed.items():
        queue = tx.ensure_queue(name)
        queue.reserved -= n
        queue.dirty = True
