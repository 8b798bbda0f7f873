"""Wakes sleeping workers and notifies listeners, after the commit of a call.

A call commits first and then reads who sleeps. A worker that found nothing registers as asleep
first and then looks once more. So a job that is put meanwhile is found by one of them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

import msgspec

from jobq.core.records.jobs import QueueName
from jobq.stores.postgres.floors import Range, as_columns
from jobq.stores.postgres.link import Link
from jobq.stores.postgres.memory import PostgresMemory, is_plain
from jobq.stores.postgres.queries import load, load_with_floors
from jobq.stores.postgres.tx import PostgresTx
from jobq.stores.relational.signals import DEPUTIES_MS, ended_topic, log_topic, noted_topic

SQL = load("waking.sql")
SQL_WITH_FLOORS = load_with_floors("waking.sql")

OVERDUE_MS = 10_000
"""Milliseconds. A delayed job that was due longer ago wakes nobody: the next claim promotes it."""


class Work(msgspec.Struct):
    """A queue that has got work."""

    qid: int
    name: QueueName
    n: int  # waiting jobs
    due_ms: int | None = None  # only a delayed job, which is due then
    more: bool = False  # only perhaps: wake a sleeper if a job waits


class Happened(msgspec.Struct):
    """Something that listeners to a topic want to know."""

    topic: str
    kind: str
    queue: QueueName
    name: str


def ended(qid: int, queue: QueueName, id: str) -> Happened:
    """A job has ended."""
    return Happened(ended_topic(qid, id), "ended", queue, id)


def noted(qid: int, queue: QueueName, id: str) -> Happened:
    """A run of a job stored progress or log lines."""
    return Happened(noted_topic(qid, id), "noted", queue, id)


def logged(qid: int, queue: QueueName) -> Happened:
    """Events were written to the log of a queue."""
    return Happened(log_topic(qid), "log", queue, "")


def of_request(tx: PostgresTx) -> tuple[list[Work], list[Happened]]:
    """What a request of the general way has to tell after its commit."""
    if not tx.tells_later:
        return [], []
    name = {qid: tx.queue_by_qid(qid).qname for qid in (*tx.woken, *tx.soonest, *tx.logged)}
    work = [Work(qid, name[qid], n) for qid, n in tx.woken.items()]
    work += [Work(qid, name[qid], 1, due) for qid, due in tx.soonest.items() if qid not in tx.woken]
    # A plain put does not wait for the lock of the queue: it may have missed the new sleeper.
    work += [
        Work(queue.qid, queue.qname, 1, more=True)
        for queue in tx.slept
        if queue.qid not in tx.woken and is_plain(queue, tx.now)
    ]
    happened = [ended(qid, tx.queue_by_qid(qid).qname, id) for qid, id in tx.ended]
    happened += [noted(*one) for one in dict.fromkeys(tx.noted)]
    happened += [logged(qid, name[qid]) for qid in tx.logged]
    return work, happened


def send(
    link: Link,
    now: int,
    memory: PostgresMemory,
    work: Iterable[Work],
    happened: Iterable[Happened],
    ranges: Sequence[tuple[int, Range]] | None = None,
) -> None:
    """Queue the statement that wakes and notifies. It belongs behind the commit and a Sync.

    `ranges`: where jobs may wait, if the caller uses floors."""
    works, topics = list(work), list(happened)
    if not works and not topics:
        return
    first, second = DEPUTIES_MS
    parameters = (
        [w.qid for w in works],
        [w.n for w in works],
        [w.due_ms for w in works],
        [w.name.tenant for w in works],
        [w.name.queue for w in works],
        [not w.more and _deputies(memory, w.qid) for w in works],
        [w.more for w in works],
        [t.topic for t in topics],
        [t.kind for t in topics],
        [t.queue.tenant for t in topics],
        [t.queue.queue for t in topics],
        [t.name for t in topics],
        str(first),
        str(second),
        now - OVERDUE_MS,
    )
    if ranges is None:
        link.execute(SQL["wake"], parameters).quiet = True
    else:
        link.execute(SQL_WITH_FLOORS["wake"], (*parameters, *as_columns(ranges))).quiet = True


def ranges(memory: PostgresMemory, work: Iterable[Work]) -> Sequence[tuple[int, Range]] | None:
    """Where more jobs may wait, if the handle uses floors."""
    more = [w.qid for w in work if w.more]
    return memory.floors.ranges(more) if more and memory.floors.active else None


def _deputies(memory: PostgresMemory, qid: int) -> bool:
    """Whether two more sleepers are to look a little later. Once per round is enough."""
    now = time.monotonic()
    if now < memory.deputies.get(qid, 0.0):
        return False
    memory.deputies[qid] = now + DEPUTIES_MS[0] / 1000
    return True
