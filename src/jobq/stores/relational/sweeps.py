"""Deletes rows that processes left behind: workers that are gone, calls that nobody will repeat,
dead listeners.

A sweep looks at a bounded number of rows per tick, in the order of the table's primary key, and the
next tick continues after the last one. So a tick costs the same however many rows there are.
"""

from __future__ import annotations

from typing import NamedTuple

from jobq.core.defaults import METRICS_MS
from jobq.stores.relational.tx import Tx


class Sweep(NamedTuple):
    """A table to sweep: the statements that read and delete its rows, and how long a row outlives
    its time."""

    read: str
    delete: str
    start: tuple[int | str, ...]  # sorts before every primary key of the table
    kept_ms: int


def tick(tx: Tx, limit: int) -> None:
    """Look at the next `limit` rows of each table and delete the expired ones."""
    for sweep in tx.sweeps:
        after = tx.memory.swept.get(sweep.read, sweep.start)
        rows = tx.execute(tx.sql.upkeep[sweep.read], (*after, limit)).fetchall()
        for *key, time_ms in rows:
            if time_ms < tx.now - sweep.kept_ms:
                tx.execute(tx.sql.upkeep[sweep.delete], key)
        tx.memory.swept[sweep.read] = tuple(rows[-1][:-1]) if len(rows) == limit else sweep.start


def minutes(tx: Tx, qid: int, limit: int) -> None:
    """Delete metrics of a queue that are older than they are kept."""
    tx.execute(tx.sql.upkeep["sweep_minutes"], (qid, tx.now - METRICS_MS, limit))
