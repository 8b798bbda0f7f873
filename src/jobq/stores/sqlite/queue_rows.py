"""Rows of queues as SQLite stores them: with the counters, the metrics of the running minute, and
the end of the event log.
"""

from __future__ import annotations

from jobq.core.event_log import STATES
from jobq.stores.relational.rows import FIGURES, QUEUE, QueueRow, Row

COLUMNS = (*QUEUE, "asleep", "heard", "seq", "pos", "logged", "minute")
"""Columns besides the counters and figures, in the order of the fields of QueueRow."""
COUNTERS = tuple(f"n_{state}" for state in STATES)
"""Columns that count the jobs of a queue, by state code."""
EVERY = (*COLUMNS, *COUNTERS, *(f"m_{figure}" for figure in FIGURES))


def queue_row(row: Row) -> QueueRow:
    """From the columns of {queue}."""
    own, counters = len(COLUMNS), len(COLUMNS) + len(COUNTERS)
    return QueueRow.of((*row[:own], row[own:counters], row[counters:]))


def values(queue: QueueRow) -> Row:
    """The parameters of `save_queue`."""
    return (
        queue.mode,
        queue.paused,
        queue.listed,
        queue.held_ms,
        queue.rate,
        queue.packed_settings,
        queue.reserved,
        queue.asleep,
        queue.heard,
        queue.seq,
        queue.pos,
        queue.logged,
        queue.minute,
        *queue.counts,
        *queue.figures,
        queue.qid,
    )
