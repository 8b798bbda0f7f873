"""Continues after-complete schedules when their job has ended, by core.cron.after_end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from jobq.core import cron
from jobq.core.queues import ScheduleRecord, ScheduleSpec
from jobq.stores.relational.rows import ScheduleRow
from jobq.stores.relational.tx import Tx


def rearm(tx: Tx, qid: int, id: str) -> None:
    """Set the next time of a schedule whose job has ended, or which made no job.

    Does nothing if the schedule was dropped, or has a next time already.
    """
    row = tx.execute(tx.sql.schedules["schedule"], (qid, id)).fetchone()
    if row is None:
        return
    record = as_record(row)
    clock_ms = tx.now - tx.ahead  # schedules follow the machine's clock, not the store's time
    next_ms = cron.after_end(record, clock_ms) if record.next_ms is None else None
    if next_ms is not None:
        tx.execute(tx.sql.schedules["rearm"], (next_ms, qid, id))


def as_record(row: Sequence[Any]) -> ScheduleRecord:
    """The record of a row of schedules."""
    found = ScheduleRow(*row)
    return ScheduleRecord(
        spec=msgspec.msgpack.decode(found.spec, type=ScheduleSpec),
        next_ms=found.next_ms,
        fired=found.fired,
        last_ms=found.last_ms,
        paused=bool(found.paused),
        created_ms=found.created_ms,
    )
