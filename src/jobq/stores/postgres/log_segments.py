"""Frees the disk of old parts of the event log, a segment at a time.

A segment (the column `slot`) holds the entries of one hour, and eight hours later it is written
again. Before that, the segment is truncated: that takes no time, leaves nothing for vacuum, and
returns the disk at once. Entries that readers may still read are moved first: those of queues with
few events, and those that a registered reader has not acknowledged.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from jobq.stores.postgres.link import StatementFailed
from jobq.stores.postgres.queries import load
from jobq.stores.postgres.tx import PostgresTx

SQL = load("log_segments.sql")

CHECK_S = 60.0
"""Seconds between two checks of the segments."""
OLD_H = 3
"""Hours after which a segment may be truncated. Transactions that still write to it hold a lock."""
MOVE_H = 5
"""Hours after which entries that are still needed are moved, so that their segment can be truncated
before it is written again. Most of them are dropped before that."""
MOVED = 5_000
"""Entries that one transaction moves, or deletes from those that were moved before."""
READ_S = 60.0
"""Seconds between the last entry that leaves a segment and its end. A reader that began before
finds the entry in one segment or the other; no read takes that long."""


class Busy(Exception):
    """Another transaction uses the segment: a backup, or a reader. A later tick tries again."""


class Segment(NamedTuple):
    """What is known of a segment."""

    number: int
    hours: int
    """Since it was written."""
    used: bool
    unnumbered: bool
    needed: bool


def find_due(tx: PostgresTx) -> list[Segment]:
    """The segments that something should happen to now. Most calls return none at once."""
    now = time.monotonic()
    if now < tx.memory.next_segments:
        return []
    tx.memory.next_segments = now + CHECK_S
    return due(
        [Segment(*row) for row in tx.execute(SQL["segments"]).fetchall()], tx.memory.free, now
    )


def due(segments: list[Segment], free: dict[int, float], now: float) -> list[Segment]:
    """The segments to truncate, or to move entries from. `free`: since when each could be
    truncated."""
    found = []
    for segment in segments:
        if not segment.used or segment.unnumbered or segment.hours < OLD_H:
            free.pop(segment.number, None)
        elif segment.needed:
            free.pop(segment.number, None)
            if segment.hours >= MOVE_H:
                found.append(segment)
        elif now - free.setdefault(segment.number, now) >= READ_S:
            found.append(segment)
    return found


def move(tx: PostgresTx, segment: int) -> bool:
    """Move entries that are still needed. Returns whether there may be more."""
    return tx.change(SQL["move"], (segment, MOVED)) == MOVED


def truncate(tx: PostgresTx, segment: int) -> None:
    """Delete everything in a segment. Busy: somebody uses it."""
    tables = f"entries_{int(segment)}, numbers_{int(segment)}"
    try:
        tx.link.command(f"LOCK TABLE {tables} IN ACCESS EXCLUSIVE MODE NOWAIT".encode()).result()
    except StatementFailed as e:
        if e.sqlstate != "55P03":
            raise
        raise Busy from None
    found = next(Segment(*row) for row in tx.execute(SQL["segments"]) if row[0] == segment)
    if found.unnumbered or found.needed or found.hours < OLD_H:
        raise Busy  # the server's clock was set back, and the segment is written again
    tx.link.command(f"TRUNCATE {tables}".encode())
    tx.memory.free.pop(segment, None)


def drop_kept(tx: PostgresTx) -> None:
    """Delete moved entries that nobody needs any more, a bounded number."""
    tx.execute(SQL["drop_kept"], (MOVED,))
