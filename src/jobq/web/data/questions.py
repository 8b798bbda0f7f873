"""What the API's reads are asked with: their queries, in the address."""

from __future__ import annotations

from jobq.web.data.jobs import JobQuery
from jobq.web.data.view import Shape


class Nothing(Shape, frozen=True, kw_only=True):
    """No query."""


class Scoped(Shape, frozen=True, kw_only=True):
    """Of one tenant, or one queue. Left out: all that the caller may see."""

    tenant: str | None = None
    queue: str | None = None


class Listing(Shape, frozen=True, kw_only=True):
    """Queues of a tenant, or of all. `after` continues a list."""

    tenant: str | None = None
    after: str | None = None


class OneQueue(Shape, frozen=True, kw_only=True):
    """A queue, and how many minutes of its metrics."""

    tenant: str
    queue: str
    minutes: int = 60


class QueueLog(Shape, frozen=True, kw_only=True):
    """A queue, and how many of its newest events."""

    tenant: str
    queue: str
    limit: int = 50


class JobListing(JobQuery, frozen=True, kw_only=True):
    """Which jobs, where the page begins, and how many."""

    cursor: str | None = None
    limit: int = 50


class OneJob(Shape, frozen=True, kw_only=True):
    """A job, or a flow by its id."""

    tenant: str
    queue: str
    id: str


class DeadListing(Shape, frozen=True, kw_only=True):
    """Failed jobs of a tenant, a queue or a task."""

    tenant: str | None = None
    queue: str | None = None
    name: str | None = None


class OneWorker(Shape, frozen=True, kw_only=True):
    """A worker."""

    name: str
