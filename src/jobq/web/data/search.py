"""Finding a queue by part of its name, and a job by its id in any queue."""

from __future__ import annotations

from jobq.core.records import JobKey, QueueName
from jobq.web.data.jobs import JobRow, job_row
from jobq.web.data.view import Shape, View

MAX_QUEUES = 1_000
"""Queues whose jobs a search by id asks for: 1,000 lookups by key take a few milliseconds."""
MAX_FOUND = 50
"""Queues and jobs that a search returns. Nobody reads more of them on one page."""


class QueueFound(Shape, frozen=True, kw_only=True):
    """A queue whose name matches."""

    tenant: str
    queue: str


class Found(Shape, frozen=True, kw_only=True):
    """What a search has found."""

    queues: tuple[QueueFound, ...]
    """Queues whose name contains the text. At most 50."""
    jobs: tuple[JobRow, ...]
    """Jobs with exactly this id, one per queue. At most 50."""
    complete: bool
    """Whether all queues were looked at."""


async def queue_names(view: View, tenant: str | None = None) -> list[QueueName]:
    """The queues that the caller may see, by tenant and name. At most 1,000."""
    records = await view.store.queues(tenant or view.tenant)
    return sorted(record.queue for record in records)[:MAX_QUEUES]


async def search(view: View, text: str, *, tenant: str | None = None) -> Found:
    """Queues and jobs that a text may mean. Two store calls, whatever is stored."""
    names = await queue_names(view, tenant)
    wanted = text.strip()
    if not wanted:
        return Found(queues=(), jobs=(), complete=True)
    folded = wanted.casefold()
    records = await view.store.get([JobKey(name, wanted) for name in names]) if names else []
    return Found(
        queues=tuple(
            QueueFound(tenant=name.tenant, queue=name.queue)
            for name in names
            if folded in name.queue.casefold()
        )[:MAX_FOUND],
        jobs=tuple(job_row(view, record) for record in records if record is not None)[:MAX_FOUND],
        complete=len(names) < MAX_QUEUES,
    )
