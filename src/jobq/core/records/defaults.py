"""Defaults and bounds that every store applies, each defined once.

The Lua library is built with them. Times are in milliseconds. Lengths of text are in characters.
"""

from __future__ import annotations

SECOND_MS = 1_000
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS

COMPLETED_MS = DAY_MS
"""How long completed jobs are kept, unless the queue declares a retention."""
FAILED_MS = 30 * DAY_MS
"""How long failed jobs are kept by default. People look into failures days later."""
CANCELLED_MS = DAY_MS
"""How long cancelled jobs are kept by default."""
KEPT_JOBS = 100_000
"""How many ended jobs of each state are kept, unless the queue declares a retention."""
WATCHED_MS = MINUTE_MS
"""How long a record stays readable at least after its job ended, while a caller waits for the
result.

The caller reads the record when it hears of the end, so `Retention(completed=0)` must not remove
the record before that.
"""

KEY_LIMIT = 1
"""Active jobs per key of a keyed queue that declares no limit. 1 keeps strict order per key."""

LOG_LINES = 1_000
"""Log lines kept per job: the newest ones."""
LOG_LINE = 10_000
"""Characters of a log line. A longer one is cut: a log is for people to read."""
LONGEST_LINE = LOG_LINE + 100
"""Characters of a log line that was cut: it ends with words that say how much is missing."""
MAX_SIGNALS = 10_000
"""Signals that a job accepts in one life. Every claim of the job reads all of them. The notes about
its children are counted with them, and are accepted up to `jobs.MAX_AFTER`."""
ERROR_LENGTH = 500
"""Characters of a failure ("type: message") in an event. The job's record has the whole text."""

FLOW_MS = HOUR_MS
"""A flow that is not submitted within an hour is swept."""
METRICS_MS = DAY_MS
"""How long the figures of a minute are kept."""

LOG_EVENTS = {"sqlite": 200_000, "postgres": 200_000, "valkey": 10_000}
"""Events of a queue's log that are kept for readers who come later.

On SQLite they take tens of megabytes of disk, on Valkey some 600 kB of memory.
"""
LOG_CAP = {"sqlite": 5_000_000, "postgres": 5_000_000, "valkey": 2_000_000}
"""Events that are kept at most for a registered reader that lags behind.

A reader sees a `gap` in place of events that were dropped.
"""

MAX_LISTED_HOLDS = 100
"""Held keys that `Queue.limits()` and the command line show: those that end first."""
