"""Drops old entries of the event log, in bounded steps.

An entry counts as dropped when the queue's row of `counts` says so. Its rows stay until their
segment is truncated (log_segments.py).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from jobq.core import defaults
from jobq.stores.postgres.queries import SQL
from jobq.stores.relational.rows import QueueRow

if TYPE_CHECKING:
    from jobq.stores.postgres.tx import PostgresTx

log = logging.getLogger("jobq")

LOG_EVENTS, LOG_CAP = defaults.LOG_EVENTS["postgres"], defaults.LOG_CAP["postgres"]


def trim_log(tx: PostgresTx, queue: QueueRow, limit: int) -> int:
    """Drop old entries that every registered reader has read; past the hard cap, unread ones too.

    Returns how many entries it dropped: at most `limit`."""
    found = tx.execute(SQL.upkeep["log_length"], (queue.qid,)).fetchone()
    logged = 0 if found is None else found[0]
    if logged <= LOG_EVENTS:
        return 0
    oldest = tx.execute(SQL.upkeep["oldest_entries"], (queue.qid, limit)).fetchall()
    excess = [pos for pos, number, _ in oldest if number <= logged - LOG_EVENTS]
    if not excess:
        return 0
    read = tx.execute(SQL.upkeep["slowest_reader"], (queue.qid,)).fetchone()[0]
    upto = excess[-1] if read is None else min(excess[-1], read)
    over = [pos for pos, number, _ in oldest if pos > upto and number <= logged - LOG_CAP]
    if over:
        log.error(
            "the event log of queue %s reached its hard cap: dropped %d entries that a registered "
            "reader has not acknowledged; the reader finds a gap in their place",
            queue.name,
            len(over),
        )
        upto = over[-1]
    dropped = [incarnation for pos, _, incarnation in oldest if pos <= upto]
    if dropped:
        tx.execute(SQL.upkeep["trim_log"], (queue.qid, upto, dropped[-1]))
    return len(dropped)
