"""Defaults and bounds that every store keeps, each stated once. The Lua library takes them from here when it is built.

Times are milliseconds, lengths of text are characters.
"""

from __future__ import annotations

SECOND_MS = 1_000
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS

COMPLETED_MS = DAY_MS
"""How long completed jobs are kept unless the queue declares a retention."""
FAILED_MS = 30 * DAY_MS
"""The same for failed jobs, which people look into days later."""
CANCELLED_MS = DAY_MS
"""The same for cancelled jobs."""
KEPT_JOBS = 100_000
"""How many ended jobs of each state are kept unless the queue declares a retention."""
WATCHED_MS = MINUTE_MS
"""The shortest time the record of a job stays readable after its end while a caller waits for its result. The caller reads
the record when it hears of the end, so `Retention(completed=0)` must not remove it before that."""

KEY_LIMIT = 1
"""Active jobs per key of a keyed queue that declares no limit: strict order per key."""

LOG_LINES = 1_000
"""Log lines kept per job, the newest ones."""
ERROR_LENGTH = 500
"""Characters of "type: message" that an event tells of a failure. The job's record has all of it."""

FLOW_MS = HOUR_MS
"""A flow that is not submitted within this time is swept."""
METRICS_MS = DAY_MS
"""How long the figures of a minute are kept."""

LOG_EVENTS = {"sqlite": 200_000, "valkey": 10_000}
"""Events of a queue's log that are kept for readers who come later: tens of megabytes on a disk, some 600 kB in memory."""
LOG_CAP = {"sqlite": 5_000_000, "valkey": 2_000_000}
"""Events that are kept at most for a registered reader that lags. What is dropped beyond it is a `gap` to that reader."""
