"""Numbers that stand for states and flags in the jobs table. The SQL files use the same numbers."""

from __future__ import annotations

# States, as in core.event_log.STATES.
DELAYED, BLOCKED, WAITING, ACTIVE, COMPLETED, FAILED, CANCELLED = range(7)
ENDED = (COMPLETED, FAILED, CANCELLED)

# Flags of a job, a bit each.
GIVEN = 1  # the caller chose the id
CANCEL = 2  # somebody asked to cancel it while it was active
WATCHED = 4  # a listener wants to know when it ends
WANTED = 8  # other jobs wait for it
LOCKING = 16  # it may hold a unique lock
TTL = 32  # it has a result_ttl of its own
SCHEDULED = 64  # a schedule continues when it ends
NOTED = 128  # it has log lines, signals, edges or steps, which are deleted with it
ERRED = 256  # it has rows in the errors table, which are deleted with it
COMMITTED = 512  # a transaction of its handler has completed it
UNFOLLOWED = 1024  # and what follows from its end is still to do
STEPPED = 2048  # it has rows in the steps table; NOTED is set too

ENDING = CANCEL | WATCHED | WANTED | LOCKING | TTL | SCHEDULED
"""A job without any of these flags, and without a key, changes only its own row when it ends."""

FOREVER = 2**53
"""`at_ms` of a job whose state does not end by the clock. NULL would leave it out of the clock
index, by which jobs are found by state."""
