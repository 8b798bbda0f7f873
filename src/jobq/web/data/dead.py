"""Dead letters: failed jobs, grouped by the fingerprint of their error."""

from __future__ import annotations

from jobq.web.data.jobs import JobRow
from jobq.web.data.view import Shape, View


class ErrorGroup(Shape):
    """Failed jobs of one cause."""

    tenant: str
    queue: str
    name: str
    """The task."""
    fingerprint: str
    """The fingerprint, or the type of the error if there is none. It is a value for the filter
    `error` of a list or a bulk action."""
    type: str
    message: str
    """Of the newest job. Empty if payloads are hidden."""
    reason: str
    jobs: int
    """Of the jobs that were looked at."""
    first_ms: int
    last_ms: int
    newest: JobRow


class DeadLetters(Shape):
    """Groups of failed jobs, the largest first."""

    groups: tuple[ErrorGroup, ...]
    """Up to 100."""
    failed: int
    """All failed jobs of these queues."""
    looked_at: int
    """The newest failed jobs, which the groups are made of."""
    complete: bool
    """Whether all failed jobs were looked at."""
    queues: dict[str, int]
    """Failed jobs by queue, as `tenant/queue`, the most first."""


async def dead_letters(
    view: View,
    *,
    tenant: str | None = None,
    queue: str | None = None,
    name: str | None = None,
) -> DeadLetters:
    """The newest failed jobs by error: up to 1,000 of each queue and 5,000 in all."""
    raise NotImplementedError
