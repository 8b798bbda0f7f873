"""The intervals and timeouts that a worker uses. Users set some of them with `Worker(…)`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class WorkerSettings:
    """Times are in milliseconds.

    In a large fleet `poll_ms`, `beat_ms` and the interval between attempts to lead grow with the
    number of workers (core/pace.py).
    """

    concurrency: int = 100
    lease_ms: int = 15_000
    drain_ms: int = 30_000
    # The longest time without claims while a job on its last chance runs.
    last_chance_ms: int = 60_000
    # From asking a run to stop until it is settled although its handler still runs.
    grace_ms: int = 5_000
    # An idle worker claims this often even if nothing wakes it, because signals can be lost.
    poll_ms: int = 5_000
    # An exchange without a reply is repeated. That is safe: the call has the same name.
    exchange_timeout_ms: int = 30_000
    # How long a stopping worker waits for stores that do not reply, all in all.
    close_timeout_ms: int = 3_500
    beat_ms: int = 5_000
    tick_ms: int = 5_000
    schedule_ms: int = 1_000
    # How long a leadership lasts without renewal. If the leader dies, upkeep and schedules stop for
    # this long, and up to 9 s more until another worker asks to lead.
    leadership_ms: int = 15_000
