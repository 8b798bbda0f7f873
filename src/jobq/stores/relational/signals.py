"""Decides whom to notify after the commit: sleeping workers, and listeners to a topic."""

from __future__ import annotations

import time

from jobq.core.records.jobs import QueueName, Topic
from jobq.stores.relational.mailbox import Address, Notice
from jobq.stores.relational.rows import DELAYED, WAITING, QueueRow
from jobq.stores.relational.tx import Tx

LISTEN_MS = 3_600_000
"""Milliseconds after which a listener that did not unregister is deleted: its process has died."""
SLEEP_MS = 30_000
"""The same for a sleeping worker. Living ones look again sooner than that."""
_MAX_SLEEPERS = 64
"""Sleepers that one wake-up looks at, at the most."""
DEPUTIES_MS = (250, 1000)
"""Milliseconds after which two more sleepers look, because the worker that was woken may be frozen
or dead.
"""


def notify(tx: Tx) -> None:
    """Collect the workers to wake and the listeners to notify after the commit."""
    for qid, freed in tx.freed.items():
        if freed <= 0:
            continue
        queue = tx.queue_by_qid(qid)
        if queue.settings.effective.limit is not None and tx.count(queue, WAITING):
            tx.woken.setdefault(qid, 1)  # the queue's limit allows another job
    if tx.tells_later:
        return
    for qid, n in tx.woken.items():
        queue = tx.queue_by_qid(qid)
        if tx.has_sleepers(queue):
            _wake(tx, queue, n)
            if tx.has_sleepers(queue) and tx.count(queue, DELAYED):
                # The sleeper that knows when the next job is due may be busy then: tell another.
                _wake(tx, queue, 1)
    for qid, due in tx.soonest.items():
        queue = tx.queue_by_qid(qid)
        if (
            qid not in tx.woken
            and tx.has_sleepers(queue)
            and tx.execute(tx.sql.hot["next_due"], (qid,)).fetchone()[0] >= due
        ):
            _wake(tx, queue, 1)  # this job is the next one due: one sleeper must know the time
    for qid, id in tx.ended:
        _notify(tx, ended_topic(qid, id), "ended", tx.queue_by_qid(qid).qname, id, once=True)
    for qid, name, id in dict.fromkeys(tx.noted):
        _notify(tx, noted_topic(qid, id), "noted", name, id)
    for qid in tx.logged:
        queue = tx.queue_by_qid(qid)
        if tx.has_listeners(queue) and not _notify(tx, log_topic(qid), "log", queue.qname, ""):
            tx.set_listeners(queue, False)


def ask_to_cancel(tx: Tx, worker: str | None, queue: QueueName, job: str) -> None:
    """Notify the worker that runs the job. It also learns of it when it renews the lease."""
    if worker is not None:
        for address in tx.execute(tx.sql.signals["listeners"], (f"c:{worker}",)).fetchall():
            tx.notices.append(Notice(address, "cancel", *queue, worker, job))


def fall_asleep(tx: Tx, queues: list[QueueRow], worker: str, address: Address, slots: int) -> None:
    """Register a worker that found nothing in these queues, so that a later job wakes it."""
    tx.many(
        tx.sql.signals["fall_asleep"],
        [(queue.qid, worker, *address, slots, tx.now) for queue in queues],
    )
    for queue in queues:
        tx.set_sleepers(queue, True)


def wake_up(tx: Tx, worker: str) -> None:
    """The worker is awake: delete its registrations."""
    tx.execute(tx.sql.signals["wake_up"], (worker,))


def topic_name(tx: Tx, topic: Topic) -> str:
    """A topic as the listeners table stores it."""
    if topic.kind == "cancel":
        return f"c:{topic.name}"
    assert topic.queue is not None
    qid = tx.ensure_queue(topic.queue).qid
    if topic.kind == "log":
        return log_topic(qid)
    return (noted_topic if topic.kind == "noted" else ended_topic)(qid, topic.name or "")


def ended_topic(qid: int, id: str) -> str:
    """The topic of a job's end."""
    return f"e:{qid}:{id}"


def noted_topic(qid: int, id: str) -> str:
    """The topic of what the runs of a job store."""
    return f"n:{qid}:{id}"


def log_topic(qid: int) -> str:
    """The topic of a queue's log."""
    return f"l:{qid}"


def listen(tx: Tx, topics: list[Topic], address: Address) -> None:
    """Register a mailbox for topics."""
    for topic in topics:
        tx.execute(tx.sql.signals["listen"], (topic_name(tx, topic), *address, tx.now + LISTEN_MS))
        if topic.queue is None:
            continue
        queue = tx.ensure_queue(topic.queue)
        if topic.kind in ("ended", "noted"):
            tx.execute(tx.sql.signals["watch_job"], (queue.qid, topic.name))
        else:
            tx.set_listeners(queue, True)


def unlisten(tx: Tx, topics: list[Topic], address: Address) -> None:
    """Remove a mailbox from topics."""
    for topic in topics:
        tx.execute(tx.sql.signals["unlisten"], (topic_name(tx, topic), *address))


def watch(tx: Tx, qid: int, ids: list[str], address: Address) -> None:
    """Notify a mailbox when these new jobs end."""
    until = tx.now + LISTEN_MS
    tx.many(tx.sql.signals["listen"], [(ended_topic(qid, id), *address, until) for id in ids])


def leave(tx: Tx, address: Address) -> None:
    """Delete the registrations of a mailbox that is closed."""
    tx.execute(tx.sql.signals["drop_mailbox"], address)
    tx.execute(tx.sql.signals["drop_sleepers_of_mailbox"], address)


def _wake(tx: Tx, queue: QueueRow, n: int) -> None:
    name = queue.qname
    most = min(n, _MAX_SLEEPERS)
    sleepers = tx.execute(tx.sql.signals["sleepers"], (queue.qid, most)).fetchall()
    for worker, slots, *address in sleepers:
        wake_up(tx, worker)
        if not tx.reachable(address):
            continue
        tx.notices.append(Notice((*address,), "work", *name, worker))
        n -= slots
        if n <= 0:
            _notify_deputies(tx, queue)
            return
    if len(sleepers) < most:
        tx.set_sleepers(queue, False)  # all were woken


def _notify_deputies(tx: Tx, queue: QueueRow) -> None:
    """Make two more sleepers look a little later.

    Deputies look at the whole queue, so one round serves all workers that are woken until the first
    deputy looks.
    """
    now = time.monotonic()
    if now < tx.memory.deputies.get(queue.qid, 0.0):
        return
    tx.memory.deputies[queue.qid] = now + DEPUTIES_MS[0] / 1000
    sleepers = tx.execute(tx.sql.signals["sleepers"], (queue.qid, len(DEPUTIES_MS))).fetchall()
    # There may be fewer sleepers than deputies.
    for (worker, _, *address), ms in zip(sleepers, DEPUTIES_MS, strict=False):
        tx.notices.append(Notice((*address,), "soon", *queue.qname, worker, str(ms)))


def _notify(
    tx: Tx, topic: str, kind: str, queue: QueueName, name: str, *, once: bool = False
) -> bool:
    """Notify the listeners to a topic. Returns whether there are any."""
    addresses = tx.execute(tx.sql.signals["listeners"], (topic,)).fetchall()
    tx.notices.extend(Notice(address, kind, *queue, name) for address in addresses)
    if once and addresses:
        tx.execute(tx.sql.signals["heard"], (topic,))
    return bool(addresses)
