"""Operations on queues: declare, limit, pause, purge, obliterate."""

from __future__ import annotations

import msgspec

from jobq.core.records import event_log, refusals
from jobq.core.records.event_log import STATE_CODES
from jobq.core.records.jobs import Mode, QueueName
from jobq.core.records.queues import Limits, QueueConfig, QueueRecord, limits_reason
from jobq.core.records.states import QueueKind, State
from jobq.core.rules import outcomes
from jobq.stores.relational import alter, ending, holds, keys, packed
from jobq.stores.relational.records import queue_record
from jobq.stores.relational.rows import (
    ACTIVE,
    BLOCKED,
    CANCELLED,
    DELAYED,
    ENDED,
    WAITING,
    Job,
    QueueRow,
    read_all,
)
from jobq.stores.relational.tx import Tx

_KEYS = 500
"""Keys that are settled at a time."""


def declare(tx: Tx, name: QueueName, config: QueueConfig) -> QueueRecord:
    """Implements `Store.declare`."""
    queue = tx.ensure_queue(name)
    if config.mode is not None and queue.mode is not None and config.mode != queue.mode:
        raise refusals.other_mode(name, queue.mode, config)
    if config.partitions not in (None, 1):
        raise refusals.no_partitions(name, config.partitions)
    stored = _with_limits(name, queue.settings, config)
    if config.limits is not None and stored.version > queue.settings.version:
        tx.record_operation(
            queue, QueueKind.LIMITS, reason=limits_reason(config.limits, version=stored.version)
        )
    if config.retention is not None:
        stored = msgspec.structs.replace(stored, retention=config.retention)
    if config.dead_letters is not None:
        stored = msgspec.structs.replace(stored, dead_letters=config.dead_letters)
    if config.max_stalls:
        stored = msgspec.structs.replace(
            stored, max_stalls=outcomes.merged_stalls(stored.max_stalls, config.max_stalls)
        )
    if config.event_meta is not None:
        stored = msgspec.structs.replace(stored, event_meta=config.event_meta)
    if config.defaults is not None:
        stored = msgspec.structs.replace(stored, defaults=config.defaults)
    changed = stored.effective != queue.settings.effective
    _store(tx, queue, config.mode or queue.mode, stored, limits_changed=changed)
    return queue_record(tx, queue)


def set_limits(
    tx: Tx, name: QueueName, limits: Limits | None, key: str | None, actor: str | None
) -> None:
    """Implements `Store.set_limits`."""
    queue = tx.ensure_queue(name)
    if limits != (
        queue.settings.changed if key is None else keys.overrides(tx, queue.qid, [key]).get(key)
    ):
        tx.record_operation(
            queue, QueueKind.LIMITS, reason=limits_reason(limits, key=key), actor=actor
        )
    if key is None:
        _store(
            tx,
            queue,
            queue.mode,
            msgspec.structs.replace(queue.settings, changed=limits),
            limits_changed=True,
        )
        return
    if limits is None:
        tx.execute(tx.sql.keyed["drop_key_override"], (queue.qid, key))
    else:
        tx.execute(
            tx.sql.keyed["set_key_override"],
            (queue.qid, key, limits.key_limit, msgspec.msgpack.encode(limits)),
        )
    holds.forget(tx, queue.qid, key)
    tx.execute(tx.sql.keyed["lift_key"], (queue.qid, key))
    keys.settle(tx, queue.qid, [key])


def pause(tx: Tx, name: QueueName, paused: bool, actor: str | None) -> None:
    """Implements `Store.pause` and `Store.resume`."""
    queue = tx.ensure_queue(name)
    if bool(queue.paused) is not paused:
        tx.record_operation(queue, QueueKind.PAUSED if paused else QueueKind.RESUMED, actor=actor)
    queue.paused, queue.dirty = int(paused), True
    if not paused:
        holds.lift(tx, queue, None, actor)
        tx.woken[queue.qid] = max(1, tx.count(queue, WAITING))


def purge_pending(tx: Tx, name: QueueName, delayed: bool, limit: int, actor: str | None) -> int:
    """Implements `Store.purge_pending`."""
    queue = tx.queue(name)
    if queue is None:
        return 0
    cleared = 0
    waiting = "some_waiting_keyed" if queue.mode == "keyed" else "some_waiting"
    steps: list[tuple[int, str, tuple[int, ...]]] = [(WAITING, waiting, (queue.qid,))]
    if delayed:
        steps += [(state, "some_timed", (queue.qid, state)) for state in (DELAYED, BLOCKED)]
    for state, statement, parameters in steps:
        for (id,) in tx.execute(
            tx.sql.queues[statement], (*parameters, limit - cleared)
        ).fetchall():
            job = tx.find(queue.qid, id)
            if job is not None and job.state == state:  # removing another job may have changed it
                job.actor = actor
                alter.cancel(tx, queue, job, reason="removed", cascade=False)
                cleared += 1
    if cleared:
        tx.record_operation(
            queue, QueueKind.CLEARED, reason=event_log.jobs_reason(cleared), actor=actor
        )
    return cleared


def purge_ended(
    tx: Tx, name: QueueName, state: State, older_than_ms: int, limit: int, actor: str | None
) -> int:
    """Implements `Store.purge_ended`."""
    queue = tx.queue(name)
    code = STATE_CODES[state]
    if code not in ENDED:
        raise refusals.not_ended(state)
    if queue is None:
        return 0
    cleaned = 0
    for keep in (0, 1):
        rows = tx.execute(
            tx.sql.queues["ended_before"],
            (queue.qid, code, keep, tx.now - older_than_ms, limit - cleaned),
        ).fetchall()
        for job in read_all(rows, Job):
            ending.forget(tx, job)
        cleaned += len(rows)
    if cleaned:
        tx.record_operation(
            queue, QueueKind.PURGED, reason=event_log.jobs_reason(cleaned, state), actor=actor
        )
    return cleaned


def obliterate(tx: Tx, name: QueueName, force: bool, limit: int, actor: str | None) -> bool:
    """Implements `Store.obliterate`."""
    queue = tx.queue(name)
    if queue is None:
        return True
    tx.check_unused(name)
    active = tx.count(queue, ACTIVE)
    if active and not force:
        raise refusals.has_active_jobs(name.queue, active)
    if force and not tx.readable(queue):
        queue.packed_settings, queue.dirty = None, True
    rows = tx.execute(tx.sql.queues["some_jobs"], (queue.qid, limit)).fetchall()
    for job in read_all(rows, Job):
        if job.state not in ENDED:  # its end is an event, like any other
            job.actor = actor
            ending.end(tx, queue, job, CANCELLED, reason="removed")
        ending.forget(tx, job)
    if len(rows) == limit:
        return False
    keys.flush(tx)  # before their rows are deleted
    for statement in (
        "drop_keys",
        "drop_key_limits",
        "drop_locks",
        "drop_schedules",
        "drop_minutes",
        "drop_sleepers",
    ):
        tx.execute(tx.sql.queues[statement], (queue.qid,))
    holds.forget(tx, queue.qid)
    if queue.listed:
        tx.record_operation(queue, QueueKind.OBLITERATED, actor=actor)
    queue.listed = queue.paused = queue.held_ms = 0
    queue.mode = queue.rate = queue.packed_settings = None
    queue.dirty = True
    return True


def _with_limits(
    name: QueueName, stored: packed.StoredSettings, config: QueueConfig
) -> packed.StoredSettings:
    if config.limits is None or config.limits_version < stored.version:
        return stored
    if config.limits_version == stored.version:
        if config.limits != stored.limits:
            raise refusals.other_limits(name, stored.version, stored.limits, config.limits)
        return stored
    return msgspec.structs.replace(
        stored, limits=config.limits, version=config.limits_version, changed=None
    )


def _store(
    tx: Tx,
    queue: QueueRow,
    mode: Mode | None,
    stored: packed.StoredSettings,
    *,
    limits_changed: bool,
) -> QueueRow:
    queue.mode, queue.packed_settings, queue.dirty = mode, packed.pack_settings(stored), True
    if limits_changed:  # holds end; a rate that allows no start holds the queue again
        queue.held_ms = 0
        holds.forget(tx, queue.qid)
        tx.woken[queue.qid] = max(1, tx.count(queue, WAITING))
        if mode == "keyed":
            _settle_all_keys(tx, queue.qid)
    return queue


def _settle_all_keys(tx: Tx, qid: int) -> None:
    """Decide for all keys of a queue which are ready, because their limit has changed."""
    tx.execute(tx.sql.keyed["lift_keys"], (qid,))
    after = ""
    while found := [key for (key,) in tx.execute(tx.sql.keyed["some_keys"], (qid, after, _KEYS))]:
        keys.settle(tx, qid, found)
        after = found[-1]
