"""Finishes a request: other jobs, keys, workers and listeners learn what it has done."""

from __future__ import annotations

from jobq.stores.relational import dead_letters, flows, keys, signals
from jobq.stores.relational.tx import Tx


def finish(tx: Tx) -> None:
    """Carry out what the request causes, and collect the notices to send after the commit.

    Runs once per request.
    """
    deliver(tx)
    if tx.changed_keys:
        keys.flush(tx)
    signals.notify(tx)


def deliver(tx: Tx) -> None:
    """Let parents go on or fail, and copy failed jobs to dead-letter queues.

    Both may end more jobs."""
    while tx.wanted or tx.failed:
        dead_letters.deliver(tx)
        flows.deliver(tx)
