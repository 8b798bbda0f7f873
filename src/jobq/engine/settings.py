"""The numbers a worker runs by. What users choose comes from `Worker(…)`; the rest is here with its reason."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class WorkerSettings:
    """Times in ms. `poll_ms`, `beat_ms` and how often an office is asked for grow with the fleet (core/pace.py)."""

    concurrency: int = 100
    lease_ms: int = 15_000
    drain_ms: int = 30_000
    last_chance_ms: int = (
        60_000  # nothing else is claimed for so long beside a job whose next stall fails it
    )
    grace_ms: int = 5_000  # from asking a run to stop until it is settled without its consent
    poll_ms: int = 5_000  # signals can be lost: an idle worker looks this often
    exchange_timeout_ms: int = (
        30_000  # an exchange unanswered for so long is repeated (safe: same call id)
    )
    close_timeout_ms: int = 10_000  # what a stopping worker gives a store that does not answer
    beat_ms: int = 5_000
    tick_ms: int = 5_000
    schedule_ms: int = 1_000
    leadership_ms: int = 15_000  # how long upkeep goes undone when the worker that led it dies
