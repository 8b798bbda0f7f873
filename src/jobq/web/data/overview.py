"""The first page: all queues, workers and the newest failures."""

from __future__ import annotations

from jobq.web.data.jobs import JobRow
from jobq.web.data.queues import QueueRow
from jobq.web.data.view import Shape, View


class Overview(Shape):
    """The first page."""

    store: str
    """The kind of store, e.g. `postgresql`."""
    now_ms: int
    queues: tuple[QueueRow, ...]
    """Up to 50, by tenant and name."""
    after: str | None
    """Continues the list of queues; None means there is no more."""
    total_queues: int
    counts: dict[str, int]
    """By state, over the queues that are listed."""
    completed_per_minute: tuple[int, ...]
    """The last 60 minutes over the queues that are listed, oldest first."""
    failed_per_minute: tuple[int, ...]
    workers: int
    active: int
    """Jobs that run now, as the workers reported."""
    concurrency: int
    """Jobs that all workers together can run at once."""
    draining: int
    failures: tuple[JobRow, ...]
    """The newest failed jobs of the queues with the most failures, newest first."""
    tenants: tuple[str, ...]
    """Tenants that the caller may choose from. Empty if the caller has only one."""


async def overview(view: View, *, tenant: str | None = None, after: str | None = None) -> Overview:
    """The first page, of one tenant or of all that the caller may see."""
    raise NotImplementedError
