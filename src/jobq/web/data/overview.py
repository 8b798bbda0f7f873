"""The first page, and finding queues and jobs by name or id."""

from __future__ import annotations

from collections.abc import Sequence

from jobq.core.records.jobs import Filter, JobKey, QueueName
from jobq.core.records.states import State
from jobq.web.data.jobs import JobRow, job_row
from jobq.web.data.queues import QueueRow, queues
from jobq.web.data.view import Shape, View
from jobq.web.data.workers import records_of

_FAILURES = 10
_FAILING = 3
"""Queues whose newest failures are shown."""
_TENANTS = 200


class Overview(Shape, frozen=True, kw_only=True):
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
    listed = await queues(view, tenant=tenant, after=after)
    rows = listed.queues
    workers = await records_of(view, tenant=tenant) if view.may("workers") else []
    tenants = () if view.tenant is not None else await _tenants(view)
    return Overview(
        store=view.store.url.partition(":")[0],
        now_ms=view.now_ms(),
        queues=rows,
        after=listed.after,
        total_queues=listed.total,
        counts={state.value: sum(row.counts[state.value] for row in rows) for state in State},
        completed_per_minute=_summed([row.completed_per_minute for row in rows]),
        failed_per_minute=_summed([row.failed_per_minute for row in rows]),
        workers=len(workers),
        active=sum(each.active for each in workers),
        concurrency=sum(each.concurrency for each in workers),
        draining=sum(each.draining for each in workers),
        failures=await _failures(view, rows),
        tenants=tenants if len(tenants) > 1 else (),
    )


def _summed(series: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(sum(minute) for minute in zip(*series, strict=True))


async def _tenants(view: View) -> tuple[str, ...]:
    names = sorted({each.queue.tenant for each in await view.store.queues()})
    return tuple(names[:_TENANTS])


async def _failures(view: View, rows: Sequence[QueueRow]) -> tuple[JobRow, ...]:
    failing = sorted(
        (row for row in rows if row.counts["failed"]), key=lambda row: -row.counts["failed"]
    )
    found: list[JobRow] = []
    for row in failing[:_FAILING]:
        filter = Filter(queue=QueueName(row.tenant, row.queue), state=State.FAILED)
        page = await view.store.find(filter, limit=_FAILURES)
        found += [job_row(view, record) for record in page.records]
    found.sort(key=lambda row: -(row.finished_ms or 0))
    return tuple(found[:_FAILURES])


# Finding a queue by part of its name, and a job by its id in any queue.

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
