"""Deletes rows that processes left behind: workers that are gone, calls that nobody will repeat,
dead listeners.

A sweep looks at a bounded number of rows per tick, in the order of the table's primary key, and the
next tick continues after the last one. So a tick costs the same however many rows there are.
"""

from __future__ import annotations

from typing import NamedTuple

from jobq.core.defaults import DAY_MS, METRICS_MS
from jobq.stores.relational.signals import SLEEP_MS
from jobq.stores.relational.tx import Tx


class Sweep(NamedTuple):
    """A table to sweep: the statements that read and delete its rows, and how long a row outlives
    its time."""

    read: str
    delete: str
    start: tuple[int | str, ...]  # sorts before every primary key of the table
    kept_ms: int
    of_mailboxes: bool = False  # the address of a mailbox is the last part of the key


_SWEEPS = (
    Sweep("next_workers", "delete_worker", ("",), DAY_MS),
    Sweep("next_listeners", "delete_listener", ("",), 0, of_mailboxes=True),
    Sweep("next_sleepers", "delete_sleeper", (0, ""), SLEEP_MS),
)
CALLS = Sweep("next_calls", "delete_call", ("",), DAY_MS)
"""For a dialect that stores the last exchange of each worker."""


def tick(tx: Tx, limit: int) -> None:
    """Look at the next `limit` rows of each table and delete the expired ones."""
    for table in _SWEEPS:
        sweep(tx, table, limit)
    tx.sweep_calls(limit)


def sweep(tx: Tx, table: Sweep, limit: int) -> None:
    """The same for one table."""
    start = (*table.start, *tx.first_mailbox) if table.of_mailboxes else table.start
    after = tx.memory.swept.get(table.read, start)
    rows = tx.execute(tx.sql.upkeep[table.read], (*after, limit)).fetchall()
    for *key, time_ms in rows:
        if time_ms < tx.now - table.kept_ms:
            tx.execute(tx.sql.upkeep[table.delete], key)
    tx.memory.swept[table.read] = tuple(rows[-1][:-1]) if len(rows) == limit else start


def minutes(tx: Tx, qid: int, limit: int) -> None:
    """Delete metrics of a queue that are older than they are kept."""
    tx.execute(tx.sql.upkeep["sweep_minutes"], (qid, tx.now - METRICS_MS, limit))
