"""Counts the waiting and active jobs of keys, and decides which keys may start another job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from jobq.core.records.defaults import KEY_LIMIT
from jobq.core.records.queues import Limits
from jobq.stores.relational.rows import KeyHead, QueueRow
from jobq.stores.relational.tx import Tx

_decode_limits = msgspec.msgpack.Decoder(Limits).decode


def unpack_limits(data: bytes) -> Limits:
    """The limits of a single key. Limits that cannot be read count as none."""
    try:
        return _decode_limits(data)
    except (msgspec.MsgspecError, TypeError):
        return Limits()


def flush(tx: Tx) -> None:
    """Write the changes of keys since the last flush, and which keys are ready.

    Runs before a claim, and at the end of a request.
    """
    for qid, changes in tx.take_keys().items():
        _write(tx, qid, changes)


def settle(tx: Tx, qid: int, names: list[str]) -> None:
    """Decide again which of these keys are ready. Keys with nothing left are deleted."""
    _write(tx, qid, dict.fromkeys(names, (0, 0)))


def started(tx: Tx, queue: QueueRow, heads: list[KeyHead], own: Mapping[str, Limits]) -> bool:
    """The jobs of these heads have started: their keys go to the back of the rotation.

    Returns whether any of the keys is still ready.
    """
    most = _limit(queue)
    turn = tx.take_seqs(queue.qid, len(heads))
    rows = []
    any_ready = False
    for n, head in enumerate(heads):
        waiting, active = head.waiting - 1, head.active + 1
        ready = waiting > 0 and active < (_own_limit(own, head.key or "", most) if own else most)
        any_ready = any_ready or ready
        rows.append((waiting, active, int(ready), turn + n, head.number))
    tx.many(tx.sql.keyed["rotate"], rows)
    return any_ready


def overrides(tx: Tx, qid: int, names: Sequence[str]) -> dict[str, Limits]:
    """The limits that operators have set for single keys, for those of these keys that have any."""
    if not names or tx.execute(tx.sql.keyed["any_override"], (qid,)).fetchone() is None:
        return {}
    return {
        key: unpack_limits(packed)
        for key, packed in tx.execute(tx.sql.keyed["overrides_of"], (qid, tx.listed(names)))
    }


def all_overrides(tx: Tx, qid: int) -> dict[str, Limits]:
    """The limits that operators have set for single keys of a queue."""
    rows = tx.execute(tx.sql.keyed["key_overrides"], (qid,))
    return {key: unpack_limits(data) for key, data in rows}


def _write(tx: Tx, qid: int, changes: Mapping[str, Sequence[int]]) -> None:
    """Add changes of [waiting, active] to the rows of keys."""
    now, most, own = tx.now, _limit(tx.queue_by_qid(qid)), overrides(tx, qid, list(changes))
    many = tx.many
    new = dict(changes)
    same, other, idle = [], [], []
    n_ready = 0
    for row, key, waiting, active, was, held, until in tx.execute(
        tx.sql.keyed["figures"], (qid, tx.listed(list(changes)))
    ).fetchall():
        more_waiting, more_active = new.pop(key)
        waiting, active = waiting + more_waiting, active + more_active
        if not waiting and not active and held <= now and until <= now:
            idle.append((row,))
            continue
        ready = 0
        if waiting > 0 and active < (_own_limit(own, key, most) if own else most):
            ready = 1 if held <= now else 2
            n_ready += ready & 1
        if ready == was:
            same.append((waiting, active, row))
        else:
            other.append((waiting, active, ready, row))
    many(tx.sql.keyed["count_key"], same)
    many(tx.sql.keyed["set_key"], other)
    many(tx.sql.keyed["drop_key"], idle)
    if new:
        turn = tx.take_seqs(qid, len(new))  # at the back of the rotation
        added = [
            (
                qid,
                key,
                waiting,
                active,
                turn + n,
                int(waiting > 0 and active < _own_limit(own, key, most)),
            )
            for n, (key, (waiting, active)) in enumerate(new.items())
            if waiting or active
        ]
        many(tx.sql.keyed["add_key"], added)
        n_ready += sum(row[5] for row in added)
    if n_ready:
        tx.woken[qid] = max(tx.woken.get(qid, 0), n_ready)


def _limit(queue: QueueRow) -> int:
    return queue.settings.effective.key_limit or KEY_LIMIT


def _own_limit(own: Mapping[str, Limits], key: str, most: int) -> int:
    limits = own.get(key)
    return most if limits is None or limits.key_limit is None else limits.key_limit
