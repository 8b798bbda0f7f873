"""The queue of a run, as workers and producers open it."""

from __future__ import annotations

import os

from jobq import Queue, Retention

KEEP = Retention(completed=None, failed=None, cancelled=None, count=None)
"""The judge compares every record with the log, so all of them stay."""


def ledger_queue() -> Queue:
    """The queue at the URL that the run has chosen."""
    url = os.environ.get("LEDGER_URL", "memory://ledger")
    return Queue("ledger", url, tenant="faults", retention=KEEP)
