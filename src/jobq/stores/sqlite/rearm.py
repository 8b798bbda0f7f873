"""After-complete schedules go on when their job has ended. The rule is `core.cron.after_end`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from jobq.core import cron
from jobq.core.queues import ScheduleRecord, ScheduleSpec
from jobq.stores.sqlite.queries import load
from jobq.stores.sqlite.tx import Tx

SQL = load("schedules.sql")


def rearm(tx: Tx, qid: int, id: str) -> None:
    """The job of a schedule has ended, or none was made. Does nothing if the schedule is gone, or has a next time already."""
    row = tx.execute(SQL["schedule"], (qid, id)).fetchone()
    if row is None:
        return
    record = as_record(row)
    next_ms = (
        cron.after_end(record, tx.now - tx.ahead) if record.next_ms is None else None
    )  # times of day are the clock's
    if next_ms is not None:
        tx.execute(SQL["rearm"], (next_ms, qid, id))


def as_record(row: Sequence[Any]) -> ScheduleRecord:
    """A row of the table."""
    _, _, spec, _, next_ms, fired, last_ms, paused, created_ms = row
    return ScheduleRecord(
        spec=msgspec.msgpack.decode(spec, type=ScheduleSpec),
        next_ms=next_ms,
        fired=fired,
        last_ms=last_ms,
        paused=bool(paused),
        created_ms=created_ms,
    )
