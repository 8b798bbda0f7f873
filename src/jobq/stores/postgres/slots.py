"""Frees the disk of old parts of the event log, a slot at a time.

A slot holds the entries of one hour, and eight hours later it is written again. Before that, the
slot is truncated: that takes no time, leaves nothing for vacuum, and returns the disk at once.
Entries that readers may still read are moved first: those of queues with few events, and those that
a registered reader has not acknowledged.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from jobq.stores.postgres.link import StatementFailed
from jobq.stores.postgres.queries import load
from jobq.stores.postgres.tx import PostgresTx

SQL = load("slots.sql")

LOOK_S = 60.0
"""Seconds between two looks at the slots."""
OLD_H = 3
"""Hours after which a slot may be truncated. Transactions that still write to it hold a lock."""
MOVE_H = 5
"""Hours after which entries that are still needed are moved, so that their slot can be truncated
before it is written again. Most of them are dropped before that."""
MOVED = 5_000
"""Entries that one transaction moves, or deletes from those that were moved before."""
READ_S = 60.0
"""Seconds between the last entry that leaves a slot and its end. A reader that began before finds
the entry in one place or the other; no read takes that long."""


class Busy(Exception):
    """Another transaction uses the slot: a backup, or a reader. A later tick tries again."""


class Slot(NamedTuple):
    """What is known of a slot."""

    slot: int
    hours: int
    """Since it was written."""
    used: bool
    unnumbered: bool
    needed: bool


def look(tx: PostgresTx) -> list[Slot]:
    """The slots that something should happen to now. Most calls return none at once."""
    now = time.monotonic()
    if now < tx.memory.next_slots:
        return []
    tx.memory.next_slots = now + LOOK_S
    return due([Slot(*row) for row in tx.execute(SQL["look"]).fetchall()], tx.memory.free, now)


def due(slots: list[Slot], free: dict[int, float], now: float) -> list[Slot]:
    """The slots to move entries from or to truncate. `free`: since when each could be truncated."""
    found = []
    for slot in slots:
        if not slot.used or slot.unnumbered or slot.hours < OLD_H:
            free.pop(slot.slot, None)
        elif slot.needed:
            free.pop(slot.slot, None)
            if slot.hours >= MOVE_H:
                found.append(slot)
        elif now - free.setdefault(slot.slot, now) >= READ_S:
            found.append(slot)
    return found


def move(tx: PostgresTx, slot: int) -> bool:
    """Move entries that are still needed. Returns whether there may be more."""
    return tx.change(SQL["move"], (slot, MOVED)) == MOVED


def truncate(tx: PostgresTx, slot: int) -> None:
    """Delete everything in a slot. Busy: somebody uses it."""
    tables = f"entries_{int(slot)}, numbers_{int(slot)}"
    try:
        tx.link.command(f"LOCK TABLE {tables} IN ACCESS EXCLUSIVE MODE NOWAIT".encode()).result()
    except StatementFailed as e:
        if e.sqlstate != "55P03":
            raise
        raise Busy from None
    found = next(Slot(*row) for row in tx.execute(SQL["look"]) if row[0] == slot)
    if found.unnumbered or found.needed or found.hours < OLD_H:
        raise Busy  # the server's clock was set back, and the slot is written again
    tx.link.command(f"TRUNCATE {tables}".encode())
    tx.memory.free.pop(slot, None)


def drop_kept(tx: PostgresTx) -> None:
    """Delete moved entries that nobody needs any more, a bounded number."""
    tx.execute(SQL["drop_kept"], (MOVED,))
