"""When schedules fire, and what happens with times that have passed.

Pure, so any number of callers agree.
"""

from __future__ import annotations

from msgspec.structs import replace

from jobq.core.records.queues import Fire, ScheduleRecord, ScheduleSpec
from jobq.core.values.crontab import next_time

GRACE_MS = 60_000
"""One minute.

A time that passed less than this ago still counts as on time, because schedulers tick and deploys
take a moment.
"""


def first_time(spec: ScheduleSpec, now_ms: int) -> int | None:
    """The first time of a schedule that is created now. Earlier times were not missed.

    `every` begins at its start, or one interval from now. A start in the past only aligns the
    times.
    """
    if spec.every_ms is None:
        after_ms = now_ms if spec.start_ms is None else max(now_ms, spec.start_ms - 1)
        return _until_end(spec, next_time(spec.cron or "", spec.tz, after_ms))
    if spec.start_ms is None:
        return _until_end(spec, now_ms + spec.every_ms)
    return _until_end(spec, max(spec.start_ms, _on_grid(spec.start_ms, spec.every_ms, now_ms - 1)))


def next_after(spec: ScheduleSpec, after_ms: int, *, anchor_ms: int | None = None) -> int | None:
    """The first time after `after_ms`. None if the schedule is over.

    `every` counts from `anchor_ms`, which is any one of its times, so late ticks never shift it.
    The default is its start, or else `after_ms`.
    """
    if spec.start_ms is not None and after_ms < spec.start_ms:
        return first_time(spec, after_ms)
    if spec.every_ms is None:
        return _until_end(spec, next_time(spec.cron or "", spec.tz, after_ms))
    anchor = (
        anchor_ms if anchor_ms is not None else after_ms if spec.start_ms is None else spec.start_ms
    )
    return _until_end(spec, _on_grid(anchor, spec.every_ms, after_ms))


def after_end(record: ScheduleRecord, ended_ms: int) -> int | None:
    """The next time of an `after_complete` schedule whose job ended now.

    None if the schedule is over. Copied by lua/schedules.lua (J.MAIL.rearm).
    """
    spec = record.spec
    if spec.every_ms is None or not spec.after_complete or _spent(record, 0):
        return None
    return _until_end(spec, ended_ms + spec.every_ms)


def plan(record: ScheduleRecord, now_ms: int, *, max_fires: int = 100) -> list[Fire]:
    """What to fire now, in order. Each Fire begins where the one before it ended.

    `catch_up` decides about times that have passed. skip: none of them fires, except the last one
    if it is at most GRACE_MS late. one: the last one fires. all: each one fires, at most
    `max_fires` per pass, and the rest in the next pass. An `after_complete` schedule has only one
    time, so it fires late rather than not at all.

    A skipped time is missed if it is more than GRACE_MS late. Times that are skipped earlier than
    that, of a schedule that fires several times per pass, are not.
    """
    due = record.next_ms
    if due is None or due > now_ms or record.paused:
        return []
    if record.spec.after_complete:
        return [_fire(record, due, None)]
    if record.spec.catch_up == "all":
        return _each(record, due, now_ms, max_fires)
    last = _last_due(record.spec, due, now_ms)
    if record.spec.catch_up == "skip" and now_ms - last > GRACE_MS:
        return [_skip(record, due, next_after(record.spec, now_ms, anchor_ms=due), missed=True)]
    late = now_ms - due > GRACE_MS
    skipped = [] if last == due else [_skip(record, due, last, missed=late)]
    following = None if _spent(record, 1) else next_after(record.spec, last, anchor_ms=due)
    return [*skipped, _fire(record, last, following)]


def _each(record: ScheduleRecord, due: int, now_ms: int, max_fires: int) -> list[Fire]:
    fires: list[Fire] = []
    at: int | None = due
    while at is not None and at <= now_ms and len(fires) < max_fires:
        following = (
            None if _spent(record, len(fires) + 1) else next_after(record.spec, at, anchor_ms=due)
        )
        fires.append(_fire(record, at, following))
        at = following
    return fires


def _last_due(spec: ScheduleSpec, due: int, now_ms: int) -> int:
    """The latest time up to now.

    Found by bisection, because a schedule that fires every second may have been idle for a month.
    """
    if spec.every_ms is not None:
        until = now_ms if spec.end_ms is None else min(now_ms, spec.end_ms)
        return due + max(0, until - due) // spec.every_ms * spec.every_ms
    # Invariant: a due time follows `low`, and none follows `high`.
    low, high, found = due - 1, now_ms, due
    while high - low > 1:
        middle = (low + high) // 2
        at = next_after(spec, middle)
        if at is not None and at <= now_ms:
            low, found = middle, at
        else:
            high = middle
    return found


def _fire(record: ScheduleRecord, at_ms: int, next_ms: int | None) -> Fire:
    return Fire(queue=record.spec.queue, schedule=record.spec.id, at_ms=at_ms, next_ms=next_ms)


def _skip(record: ScheduleRecord, at_ms: int, next_ms: int | None, *, missed: bool) -> Fire:
    return replace(_fire(record, at_ms, next_ms), skipped=True, missed=missed)


def _spent(record: ScheduleRecord, more: int) -> bool:
    return record.spec.limit is not None and record.fired + more >= record.spec.limit


def _until_end(spec: ScheduleSpec, at_ms: int | None) -> int | None:
    return None if at_ms is None or (spec.end_ms is not None and at_ms > spec.end_ms) else at_ms


def _on_grid(anchor_ms: int, every_ms: int, after_ms: int) -> int:
    return anchor_ms + ((after_ms - anchor_ms) // every_ms + 1) * every_ms
