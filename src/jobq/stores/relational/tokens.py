"""The tokens of leases: the job's number, its life and attempt, and the call that claimed it.

No two leases of a job have the same token. The call alone would not do: a call that the network
delivers again after the worker's next one claims the job a second time.
"""

from __future__ import annotations

from jobq.core.records import lane_of
from jobq.stores.relational.rows import ClaimedJob


def token_of(job: ClaimedJob, suffix: str) -> str:
    """The token of a lease. Statements that claim several jobs make the same text."""
    return f"{job.pk}.{job.life}.{job.attempt}{suffix}"


def token_suffix(worker: str, call: str) -> str:
    """The part of a token that all leases of one call share. It follows the attempt."""
    return f".{worker}/{call}"


def caller_of(worker: str, call: str) -> str:
    """Whose calls follow each other, as the store remembers them: a lane of a worker."""
    lane = lane_of(call)
    return f"{worker}\n{lane}" if lane else worker


def job_number(token: str) -> int:
    """The job's number in a token; -1 if this store has not made the token."""
    head = token.partition(".")[0]
    return int(head) if head.isascii() and head.isdigit() else -1
