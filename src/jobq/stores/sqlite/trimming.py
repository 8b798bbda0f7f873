"""Drops old entries of the event log, in bounded steps."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from jobq.core.records import defaults, event_log
from jobq.stores.relational.rows import QueueRow
from jobq.stores.sqlite.statements import SQL

if TYPE_CHECKING:
    from jobq.stores.sqlite.tx import SqliteTx

log = logging.getLogger("jobq")

LOG_EVENTS, LOG_CAP = defaults.LOG_EVENTS["sqlite"], defaults.LOG_CAP["sqlite"]
TRIM_EVENTS = 20_000
"""Events that one tick drops from a queue's log, or twice as many as were written since the last
tick if that is more.

Dropping an entry reads all its pages: the 800,000 surplus events of a bulk of a million jobs are 54
MB. Dropped at once, they held up the worker's first claims for 0.15 to 0.35 s, and 5,000 jobs
drained at half the usual rate. 20,000 take about 5 ms, and twice the rate of writing is enough to
catch up."""


def trim_log(tx: SqliteTx, queue: QueueRow, limit: int) -> int:
    """Drop old entries that every registered reader has read; past the hard cap, unread ones too.

    Returns how many entries it dropped: at most `limit`, and not many more than `TRIM_EVENTS`
    events."""
    allowed = max(TRIM_EVENTS, 2 * (queue.logged - tx.memory.trimmed.get(queue.qid, queue.logged)))
    tx.memory.trimmed[queue.qid] = queue.logged
    if queue.logged <= LOG_EVENTS:
        return 0
    oldest = _within(
        tx.execute(SQL.upkeep["oldest_entries"], (queue.qid, limit)).fetchall(), allowed
    )
    excess = [pos for pos, logged in oldest if logged <= queue.logged - LOG_EVENTS]
    if not excess:
        return 0
    read = tx.execute(SQL.upkeep["slowest_reader"], (queue.qid,)).fetchone()[0]
    upto = excess[-1] if read is None else min(excess[-1], read)
    over = [pos for pos, logged in oldest if pos > upto and logged <= queue.logged - LOG_CAP]
    if over:
        log.error(
            "the event log of queue %s reached its hard cap: dropped %d entries that a registered "
            "reader has not acknowledged; the reader finds a gap in their place",
            queue.name,
            len(over),
        )
        upto = over[-1]
    _remember_last(tx, queue, upto)
    return tx.change(SQL.upkeep["trim_log"], (queue.qid, upto))


def _within(entries: list[tuple[int, int]], events: int) -> list[tuple[int, int]]:
    """The first entry, and the following ones that together have at most so many events."""
    last = entries[0][1] + events if entries else 0
    return [(pos, logged) for pos, logged in entries if logged <= last]


def _remember_last(tx: SqliteTx, queue: QueueRow, pos: int) -> None:
    """Store the incarnation of the last entry that is dropped: the id of the gap contains it."""
    found = tx.execute(SQL.upkeep["entry_at"], (queue.qid, pos)).fetchone()
    if found is not None:
        tx.execute(
            SQL.upkeep["trimmed"], (f"trimmed.{queue.qid}", event_log.incarnation_of(found[0]))
        )
