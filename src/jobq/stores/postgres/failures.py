"""What an error of the server means for a call."""

from __future__ import annotations

from jobq.errors import ConfigError, JobqError, LockTimeout, StoreUnavailable
from jobq.stores.postgres.link import StatementFailed

AGAIN = frozenset(
    {
        "40001",  # serialization failure, also: the row moved to another partition
        "40P01",  # deadlock
        "55P03",  # lock timeout
        "23505",  # another call has inserted the same row
        "22012",  # a statement divides by zero if what it assumes is not true any more
    }
)
"""The call met another one. It changed nothing, and is repeated."""
LOCK_TIMEOUT = "55P03"
SERIALIZATION = "40001"
READ_ONLY = frozenset(
    {
        "25006",  # a statement that writes
        "0A000",  # BEGIN READ WRITE
    }
)
"""The server is a standby, or became one: the connection leads to the wrong server."""
_UNAVAILABLE = (
    "08",  # connection
    "0A",  # not supported: a standby does not write
    "25",  # state of the transaction
    "40",  # rolled back
    "53",  # resources: disk full, out of memory, too many connections
    "55",  # not in the right state
    "57",  # canceled or shut down
    "58",  # system
    "XX",  # internal
)
"""Classes of errors that may be gone when the call is repeated later."""
MISSING = frozenset({"3F000", "42P01", "42703", "42883"})  # schema, table, column or function
"""Somebody has dropped the tables. What a handle knows of them is not true of those to come."""


def translated(error: StatementFailed, store: str, schema: str) -> Exception:
    """The error that the caller gets. It names no type of the driver."""
    found: JobqError
    if error.sqlstate[:2] in _UNAVAILABLE:
        found = StoreUnavailable(f"{store} is unavailable: {error}")
    elif error.sqlstate == "42501":
        found = ConfigError(
            f"the role that jobq uses at {store} lacks a right: {error}; "
            "docs/guide/postgresql.md lists the rights that it needs"
        )
    elif error.sqlstate in MISSING:
        found = ConfigError(
            f"the tables of jobq in the schema {schema!r} at {store} are missing or damaged: "
            f"{error}; restore them, or create them with `jq-ctl store migrate`"
        )
    else:
        return error
    found.__cause__ = error
    return found


def waited_for_row(error: StatementFailed) -> bool:
    """Whether a statement has waited too long for a row that another transaction holds.

    A wait for a whole table has no context: its lock is an operator's, not a caller's."""
    return error.sqlstate == LOCK_TIMEOUT and bool(error.context)


def queue_used(queue: str) -> LockTimeout:
    """The error of a removal that meets a caller's open transaction."""
    return LockTimeout(
        f"queue {queue!r} was not removed: an open transaction has enqueued or completed jobs of "
        "it; try again when that transaction has ended"
    )


def id_or_lock_held() -> LockTimeout:
    """The error of a put that has waited for another open transaction."""
    return LockTimeout(
        "another open transaction holds the id or the unique lock of a job: nothing was stored; "
        "try again when that transaction has ended"
    )
