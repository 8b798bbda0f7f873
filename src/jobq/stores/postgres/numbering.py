"""Gives the entries of the event log their positions and numbers, after their commit.

A call appends its entry without a number, so no call waits for another one's commit. A pass of the
numbering takes a snapshot and numbers the entries that it sees and the last pass did not see. It
waits for nobody: an entry of a transaction that is still open gets its number in a later pass.

The events of one job have their order: an entry's `eid` is drawn while its transaction holds the
locks of its jobs, so a later change of the same job has a higher one, and no pass sees it without
the earlier one.

Readers of the log number first. Counters and metrics add what has no number yet, so they are exact
without a pass; the leader's tick numbers so that there is little to add.
"""

from __future__ import annotations

import logging

from jobq.stores.postgres.queries import NUMBERING
from jobq.stores.postgres.tx import PostgresTx

log = logging.getLogger("jobq")

PASS = 5_000
"""Entries that one transaction numbers at the most: about 50 ms of work."""
PASSES = 200
"""Passes after which a reader stops numbering, so that a call ends. The next one goes on."""


def number(tx: PostgresTx) -> bool:
    """Number the entries that were committed since the last pass. Returns whether more are left."""
    tx.execute(NUMBERING["lock"])
    restored = tx.execute(NUMBERING["restored"])
    row = tx.execute(NUMBERING["number"], (PASS,)).fetchone()
    if (restored.fetchone() or (False,))[0]:
        _adopt_restored(tx)
        return True
    return row is not None and bool(row[1])


def _adopt_restored(tx: PostgresTx) -> None:
    """The tables were restored on a server that has counted fewer transactions.

    There a pass would never find entries whose transactions seem to lie in the future.
    """
    log.warning(
        "the event log was restored from another server: entries without numbers get theirs now"
    )
    tx.execute(NUMBERING["adopt"])
    tx.execute(NUMBERING["continue_here"])
