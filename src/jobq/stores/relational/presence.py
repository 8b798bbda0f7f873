"""Which workers there are, what operators ask of them, and which worker leads."""

from __future__ import annotations

import msgspec

from jobq.core.records.jobs import QueueName
from jobq.core.records.workers import Beat, WorkerRecord, WorkerRequest
from jobq.stores.relational.tx import Tx


def beat(tx: Tx, worker: WorkerRecord, ttl_ms: int, displace: bool) -> Beat:
    """Implements `Store.beat`."""
    request, taken = None, False
    if (
        known := tx.execute(tx.sql.presence["worker"], (worker.name, tx.now)).fetchone()
    ) is not None:
        data, request = known
        if _incarnation(data) not in (worker.incarnation, None):
            request, taken = None, not displace
    if not taken:
        seen = msgspec.structs.replace(worker, seen_ms=tx.now)
        tx.execute(
            tx.sql.presence["beat"],
            (worker.name, msgspec.msgpack.encode(seen), tx.now + ttl_ms, request),
        )
    (workers,) = tx.execute(tx.sql.presence["fleet"], (tx.now,)).fetchone()
    return Beat(request, workers, taken)


def _unpack(data: bytes) -> WorkerRecord | None:
    """The record of a worker; None if it cannot be read: the worker's next beat replaces it."""
    try:
        return msgspec.msgpack.decode(data, type=WorkerRecord)
    except (msgspec.MsgspecError, TypeError):
        return None


def _incarnation(data: bytes) -> str | None:
    worker = _unpack(data)
    return None if worker is None else worker.incarnation


def retire(tx: Tx, name: str, incarnation: str | None) -> None:
    """Implements `Store.retire`."""
    known = (
        None
        if incarnation is None
        else tx.execute(tx.sql.presence["worker"], (name, tx.now)).fetchone()
    )
    if known is not None and _incarnation(known[0]) not in (incarnation, None):
        return
    for statement in ("retire", "forget_sleeper", "forget_call"):
        tx.execute(tx.sql.presence[statement], (name,))


def workers(tx: Tx, queue: QueueName | None) -> list[WorkerRecord]:
    """Implements `Store.workers`."""
    rows = tx.execute(tx.sql.presence["workers"], (tx.now,)).fetchall()
    found = [_unpack(data) for (data,) in rows]
    return [
        worker
        for worker in found
        if worker is not None and (queue is None or queue in worker.queues)
    ]


def number_of(tx: Tx, queue: QueueName) -> int:
    """How many workers claim from the queue."""
    return len(workers(tx, queue))


def ask_worker(tx: Tx, name: str, request: WorkerRequest) -> bool:
    """Implements `Store.ask_worker`."""
    return tx.change(tx.sql.presence["ask_worker"], (request, name, tx.now)) > 0


def lead(tx: Tx, name: str, who: str, ttl_ms: int) -> bool:
    """Implements `Store.lead`."""
    return tx.change(tx.sql.presence["lead"], (name, who, tx.now + ttl_ms, tx.now)) > 0
