"""Holds of queues and keys. The rule is `core.rules.limits`.

`held_ms` of a queue or key is the time before which claims skip it, because of a hold or a rate
that is used up. The table `holds` has the holds alone, for operators to see and release.
"""

from __future__ import annotations

from jobq.core.records.jobs import QueueName
from jobq.core.records.queues import HoldsRecord
from jobq.core.records.states import QueueKind
from jobq.core.rules import limits
from jobq.stores.relational import keys
from jobq.stores.relational.rows import WAITING, QueueRow
from jobq.stores.relational.tx import Tx

_QUEUE = ""


def hold(tx: Tx, name: QueueName, ms: int, key: str | None, actor: str | None) -> None:
    """Implements `Store.hold`."""
    queue = tx.ensure_queue(name)
    if key is not None and queue.mode == "plain":
        raise limits.no_keys_to_hold(name.queue)
    if put(tx, queue, ms, key):
        tx.record_operation(queue, QueueKind.HELD, reason=limits.hold_reason(ms, key), actor=actor)
        if key is not None:
            keys.settle(tx, queue.qid, [key])


def put(tx: Tx, queue: QueueRow, ms: int, key: str | None) -> bool:
    """Hold a queue or a key. Returns False if it is held for longer already."""
    until = tx.now + ms
    if not tx.change(tx.sql.holds["put_hold"], (queue.qid, key or _QUEUE, until, ms)):
        return False
    if key is not None:
        tx.execute(tx.sql.keyed["hold_key"], (queue.qid, key, until))
    else:
        queue.held_ms, queue.dirty = max(until, queue.held_ms), True
    return True


def release(tx: Tx, name: QueueName, key: str | None, actor: str | None) -> bool:
    """Implements `Store.release_hold`."""
    queue = tx.queue(name)
    return queue is not None and lift(tx, queue, key, actor)


def lift(tx: Tx, queue: QueueRow, key: str | None, actor: str | None) -> bool:
    """Release the hold of a queue or a key, and wake workers.

    If a rate allows no start yet, the next claim holds the queue or key again.
    """
    held = tx.execute(tx.sql.holds["hold"], (queue.qid, key or _QUEUE, tx.now)).fetchone()
    tx.execute(tx.sql.holds["lift_hold"], (queue.qid, key or _QUEUE))
    if held is None:
        return False
    tx.record_operation(
        queue, QueueKind.RELEASED_HOLD, reason=limits.lifted_reason(key), actor=actor
    )
    if key is not None:
        tx.execute(tx.sql.keyed["lift_key"], (queue.qid, key))
        keys.settle(tx, queue.qid, [key])
    else:
        queue.held_ms, queue.dirty = 0, True
        tx.woken[queue.qid] = max(1, tx.count(queue, WAITING))
    return True


def forget(tx: Tx, qid: int, key: str | None = None) -> None:
    """Delete the hold of a key, or all holds of a queue, because its limits have changed."""
    if key is None:
        tx.execute(tx.sql.holds["lift_holds"], (qid,))
    else:
        tx.execute(tx.sql.holds["lift_hold"], (qid, key))


def until(tx: Tx, queue: QueueRow) -> int | None:
    """The time at which the hold of a queue ends, by the machine's clock; None: it is not held."""
    if queue.held_ms <= tx.now:
        return None
    row = tx.execute(tx.sql.holds["hold"], (queue.qid, _QUEUE, tx.now)).fetchone()
    return None if row is None else int(row[0]) - tx.ahead


def listed(tx: Tx, name: QueueName, limit: int) -> HoldsRecord:
    """Implements `Store.holds`."""
    queue = tx.queue(name)
    if queue is None:
        return HoldsRecord()
    held = tx.execute(tx.sql.holds["held_keys"], (queue.qid, tx.now, limit)).fetchall()
    return HoldsRecord(
        until_ms=until(tx, queue), keys={key: until_ms - tx.ahead for key, until_ms in held}
    )


def tick(tx: Tx, limit: int) -> None:
    """Delete holds that are over. Shorten those that a clock that was set back made longer."""
    for qid, key, until_ms, ms in tx.execute(tx.sql.holds["odd_holds"], (tx.now, limit)).fetchall():
        if until_ms <= tx.now:
            tx.execute(tx.sql.holds["lift_hold"], (qid, key))
            continue
        ends = limits.hold_end(until_ms, ms, tx.now)
        tx.execute(tx.sql.holds["end_hold_at"], (ends, qid, key))
        if key != _QUEUE:
            tx.execute(tx.sql.keyed["hold_key_until"], (ends, qid, key))
        else:
            queue = tx.queue_by_qid(qid)
            queue.held_ms, queue.dirty = ends, True
