"""Workers, and what each of them runs."""

from __future__ import annotations

from jobq.core.records.jobs import Filter, QueueName
from jobq.core.records.states import State
from jobq.core.records.workers import WorkerRecord
from jobq.errors import JobNotFound
from jobq.web.data.jobs import JobRow, job_row
from jobq.web.data.view import Shape, View

_MAX_WORKERS = 500
_QUEUES = 10
"""Queues of a worker whose active jobs are looked at."""
_ACTIVE = 200
"""Active jobs of each of them."""


class QueueRef(Shape, frozen=True, kw_only=True):
    """The name of a queue."""

    tenant: str
    queue: str


class WorkerRow(Shape, frozen=True, kw_only=True):
    """A worker, as its last heartbeat described it."""

    name: str
    host: str
    pid: int
    queues: tuple[QueueRef, ...]
    concurrency: int
    active: int
    paused: bool
    """By the program that runs it."""
    draining: bool
    """By an operator: it finishes running jobs and claims no more."""
    started_ms: int
    seen_ms: int


class WorkerList(Shape, frozen=True, kw_only=True):
    """Workers by name. At most 500."""

    workers: tuple[WorkerRow, ...]
    total: int
    now_ms: int


class WorkerShown(Shape, frozen=True, kw_only=True):
    """The page of a worker."""

    row: WorkerRow
    now_ms: int
    jobs: tuple[JobRow, ...]
    """What it runs: found among up to 200 active jobs of each of its queues."""
    complete: bool
    """Whether all active jobs of its queues were looked at."""


async def records_of(
    view: View, *, tenant: str | None = None, queue: str | None = None
) -> list[WorkerRecord]:
    """Workers by name: of a queue, of a tenant, or all that the caller may see."""
    if tenant is not None and queue is not None:
        return await view.store.workers(QueueName(tenant, queue))
    return [
        each
        for each in await view.store.workers()
        if tenant is None or any(name.tenant == tenant for name in each.queues)
    ]


async def workers(view: View, *, tenant: str | None = None, queue: str | None = None) -> WorkerList:
    """Workers of a queue, of a tenant, or all that the caller may see."""
    found = await records_of(view, tenant=tenant, queue=queue)
    return WorkerList(
        workers=tuple(worker_row(each) for each in found[:_MAX_WORKERS]),
        total=len(found),
        now_ms=view.now_ms(),
    )


def worker_row(record: WorkerRecord) -> WorkerRow:
    """A record as a row."""
    return WorkerRow(
        name=record.name,
        host=record.host,
        pid=record.pid,
        queues=tuple(QueueRef(tenant=name.tenant, queue=name.queue) for name in record.queues),
        concurrency=record.concurrency,
        active=record.active,
        paused=record.paused,
        draining=record.draining,
        started_ms=record.started_ms,
        seen_ms=record.seen_ms,
    )


async def worker(view: View, name: str) -> WorkerShown:
    """One worker and its running jobs. JobNotFound if there is no such worker."""
    for record in await view.store.workers():
        if record.name == name:
            break
    else:
        raise JobNotFound(f"there is no worker {name!r}: it has stopped, or its heartbeat is late")
    running: list[JobRow] = []
    complete = len(record.queues) <= _QUEUES
    for queue in record.queues[:_QUEUES]:
        page = await view.store.find(Filter(queue=queue, state=State.ACTIVE), limit=_ACTIVE)
        running += [job_row(view, each) for each in page.records if each.worker == name]
        complete = complete and page.cursor is None
    return WorkerShown(
        row=worker_row(record), now_ms=view.now_ms(), jobs=tuple(running), complete=complete
    )
