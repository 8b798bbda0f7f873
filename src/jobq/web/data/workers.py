"""Workers, and what each of them runs."""

from __future__ import annotations

from jobq.web.data.jobs import JobRow
from jobq.web.data.view import Shape, View


class QueueRef(Shape):
    """The name of a queue."""

    tenant: str
    queue: str


class WorkerRow(Shape):
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


class WorkerList(Shape):
    """Workers by name. At most 500."""

    workers: tuple[WorkerRow, ...]
    total: int
    now_ms: int


class WorkerShown(Shape):
    """The page of a worker."""

    row: WorkerRow
    now_ms: int
    jobs: tuple[JobRow, ...]
    """What it runs: found among up to 500 active jobs of each of its queues."""
    complete: bool
    """Whether all active jobs of its queues were looked at."""


async def workers(view: View, *, tenant: str | None = None, queue: str | None = None) -> WorkerList:
    """Workers of a queue, of a tenant, or all that the caller may see."""
    raise NotImplementedError


async def worker(view: View, name: str) -> WorkerShown:
    """One worker and its running jobs. JobNotFound if there is no such worker."""
    raise NotImplementedError
