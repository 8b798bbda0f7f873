"""Schedules. Callers work out the next time; the store compares it and sets it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

import msgspec

from jobq.core.records.commands import Altered
from jobq.core.records.jobs import QueueName
from jobq.core.records.queues import Fire, ScheduleRecord, ScheduleSpec
from jobq.core.records.states import QueueKind
from jobq.stores.relational import put
from jobq.stores.relational.ending import rearm
from jobq.stores.relational.records import schedule_record
from jobq.stores.relational.rows import QueueRow, Row, ScheduleRow
from jobq.stores.relational.tx import Tx

log = logging.getLogger("jobq")


def put_schedule(
    tx: Tx, spec: ScheduleSpec, next_ms: int | None, actor: str | None
) -> ScheduleRecord:
    """Implements `Store.put_schedule`."""
    queue = tx.ensure_queue(spec.queue)
    qid = queue.qid
    packed = msgspec.msgpack.encode(spec)
    row = tx.execute(tx.sql.schedules["schedule"], (qid, spec.id)).fetchone()
    if row is None or ScheduleRow(*row).spec != packed:
        tx.execute(tx.sql.schedules["put_schedule"], (qid, spec.id, packed, next_ms, tx.now))
        row = tx.execute(tx.sql.schedules["schedule"], (qid, spec.id)).fetchone()
        _changed(tx, queue, "put", spec.id, actor)
    return schedule_record(row)


def drop_schedule(tx: Tx, name: QueueName, id: str, actor: str | None) -> bool:
    """Implements `Store.drop_schedule`."""
    queue = tx.queue(name)
    if queue is None or not tx.change(tx.sql.schedules["drop_schedule"], (queue.qid, id)):
        return False
    _changed(tx, queue, "dropped", id, actor)
    return True


def pause_schedule(tx: Tx, name: QueueName, id: str, paused: bool, actor: str | None) -> Altered:
    """Implements `Store.pause_schedule`."""
    queue = tx.queue(name)
    row = (
        None
        if queue is None
        else tx.execute(tx.sql.schedules["schedule"], (queue.qid, id)).fetchone()
    )
    if queue is None or row is None:
        return "missing"
    if schedule_record(row).paused is paused:
        return "late"
    tx.execute(tx.sql.schedules["pause_schedule"], (int(paused), queue.qid, id))
    _changed(tx, queue, "paused" if paused else "resumed", id, actor)
    return "done"


def list_schedules(tx: Tx, name: QueueName | None, due: bool, limit: int) -> list[ScheduleRecord]:
    """Implements `Store.list_schedules`."""
    if name is None:
        rows = (
            tx.execute(tx.sql.schedules["due"], (tx.now - tx.ahead, limit))
            if due
            else tx.execute(tx.sql.schedules["of_all"], (limit,))
        )
        return _readable(rows)
    queue = tx.queue(name)
    if queue is None:
        return []
    clock = tx.now - tx.ahead  # schedules follow the machine's clock, not the store's time
    rows = (
        tx.execute(tx.sql.schedules["due_of_queue"], (queue.qid, clock, limit))
        if due
        else tx.execute(tx.sql.schedules["of_queue"], (queue.qid, limit))
    )
    return _readable(rows)


def _readable(rows: Iterable[Row]) -> list[ScheduleRecord]:
    """The records of these rows, without the schedules that cannot be read."""
    found = []
    for row in rows:
        try:
            found.append(schedule_record(row))
        except (msgspec.MsgspecError, TypeError) as error:
            log.error(
                "a stored schedule cannot be read and is skipped (%s): remove it or store it again",
                error,
            )
    return found


def fire(tx: Tx, fires: Sequence[Fire]) -> list[bool]:
    """Implements `Store.fire`."""
    return [_fire(tx, each) for each in fires]


def _fire(tx: Tx, each: Fire) -> bool:
    queue = tx.queue(each.queue)
    row = (
        None
        if queue is None
        else tx.execute(tx.sql.schedules["schedule"], (queue.qid, each.schedule)).fetchone()
    )
    if queue is None or row is None:
        return False
    made = int(not each.skipped)
    last = None if each.skipped else each.at_ms
    if not tx.change(
        tx.sql.schedules["fired"], (each.next_ms, made, last, queue.qid, each.schedule, each.at_ms)
    ):
        return False
    if made:
        spec = schedule_record(row).spec
        job = msgspec.structs.replace(
            spec.template,
            queue=each.queue,
            id=each.job_id,
            given_id=False,
            delay_ms=0,
            at_ms=None,
            schedule=each.schedule,
        )
        result = put.put(tx, [job], None)[0]
        elsewhere = result.duplicate and result.id != job.id
        if result.full is not None:
            tx.record_operation(queue, QueueKind.MISSED, reason=each.job_id)
        if spec.after_complete and (elsewhere or result.full is not None):
            # Another job holds the unique lock, or the queue is full: the schedule has fired, and
            # no job of its own will end.
            rearm(tx, queue.qid, each.schedule)
    elif each.missed:
        tx.record_operation(queue, QueueKind.MISSED, reason=each.job_id)
    return True


def _changed(tx: Tx, queue: QueueRow, how: str, id: str, actor: str | None) -> None:
    tx.record_operation(queue, QueueKind.SCHEDULE, reason=f"{how} {id}", actor=actor)
