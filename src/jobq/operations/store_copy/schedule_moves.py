"""Moves the schedules of one queue. Each time fires in one of the two stores, never in both."""

from __future__ import annotations

from jobq.core import copies
from jobq.core.copies import Parked
from jobq.core.queues import ScheduleRecord
from jobq.core.records import QueueName
from jobq.operations.schedules import of_queues
from jobq.operations.store_copy.side import Side


async def move_schedules(source: Side, target: Side, queue: QueueName, *, idle: bool) -> int:
    """Move the schedules of a queue, and return how many moved.

    A schedule is first parked in the target: stored so that it cannot fire. It is then paused in
    the source, read again, removed there, and started in the target. A copy that was killed finds
    the parked schedule and continues. `idle` is False if jobs of the queue are active: a schedule
    that waits for its job to end then stays.
    """
    moved = await _finish_last(source, target, queue)
    for record in await of_queues(source.store, [queue]):
        waits = record.spec.after_complete and record.next_ms is None
        if copies.is_over(record) or copies.parked(record) or (waits and not idle):
            continue
        await _move(source, target, record, paused=record.paused)
        moved += 1
    return moved


async def _finish_last(source: Side, target: Side, queue: QueueName) -> int:
    """Finish the schedules that a killed copy has parked."""
    left = {record.spec.id: record for record in await of_queues(source.store, [queue])}
    finished = 0
    for stand_in in await of_queues(target.store, [queue]):
        parked = copies.parked(stand_in)
        if parked is None:
            continue
        record = left.get(stand_in.spec.id)
        if record is None:
            await _start(target, parked)
        else:
            await _move(source, target, record, paused=parked.paused)
        finished += 1
    return finished


async def _move(source: Side, target: Side, record: ScheduleRecord, *, paused: bool) -> None:
    queue, id = record.spec.queue, record.spec.id
    await _park(target, record, paused=paused)
    await source.store.pause_schedule(queue, id, paused=True, actor=source.actor)
    # It cannot fire any more, so its next time is final now.
    for last in await of_queues(source.store, [queue]):
        if last.spec.id == id:
            record = last
            await _park(target, record, paused=paused)
    await source.store.drop_schedule(queue, id, actor=source.actor)
    stand_in = copies.parked(ScheduleRecord(spec=copies.park(record, paused=paused), next_ms=None))
    assert stand_in is not None
    await _start(target, stand_in)


async def _park(target: Side, record: ScheduleRecord, *, paused: bool) -> None:
    await target.store.put_schedule(
        copies.park(record, paused=paused), next_ms=None, actor=target.actor
    )


async def _start(target: Side, parked: Parked) -> None:
    """Replace the parked schedule by the real one."""
    spec = parked.spec
    if parked.paused:
        await target.store.pause_schedule(spec.queue, spec.id, paused=True, actor=target.actor)
    await target.store.put_schedule(spec, next_ms=parked.next_ms, actor=target.actor)
