"""The API's reads, one row of `READS` each. The pages show the same records."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from msgspec.structs import asdict

from jobq.access.table import ROUTES, Door
from jobq.web.data import dead, flows, job, jobs, overview, queues, schedules, tenants, workers
from jobq.web.data.jobs import JobQuery
from jobq.web.data.log import LogEntry
from jobq.web.data.view import Shape, View

# What the API's reads are asked with: their queries, in the address.


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


class MinuteList(Shape, frozen=True, kw_only=True):
    """What happened per minute, oldest first."""

    minutes: tuple[queues.Minute, ...]


class EventList(Shape, frozen=True, kw_only=True):
    """Events of a queue's log, newest first."""

    events: tuple[LogEntry, ...]


class SessionShown(Shape, frozen=True, kw_only=True):
    """Who makes the request, and what they may do."""

    subject: str
    tenant: str | None
    scopes: tuple[str, ...]
    read_only: bool
    hide_payloads: bool
    csrf_token: str
    """For the header X-CSRF-Token of requests that change something, with the cookie of this
    reply."""


class Read(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the table of reads."""

    path: str
    """Below /api/v1."""
    query: type[Shape]
    run: Callable[[View, Any], Awaitable[Shape]]
    """Its docstring is the description of the route."""
    reply: type[Shape]

    @property
    def door(self) -> Door:
        """Who may do it."""
        return ROUTES[f"GET /api/v1{self.path}"]


async def _overview(view: View, query: Listing) -> overview.Overview:
    """The first page: up to 50 queues, workers and the newest failures."""
    return await overview.overview(view, **asdict(query))


async def _queues(view: View, query: Listing) -> queues.QueueList:
    """Up to 50 queues by name."""
    return await queues.queues(view, **asdict(query))


async def _queue(view: View, query: OneQueue) -> queues.QueueShown:
    """One queue: counts, rates, limits, holds, minutes and newest events."""
    return await queues.queue(view, query.tenant, query.queue, minutes=query.minutes)


async def _minutes(view: View, query: OneQueue) -> MinuteList:
    """What happened in a queue per minute, up to a day."""
    found = await queues.minutes(view, query.tenant, query.queue, minutes=query.minutes)
    return MinuteList(minutes=found)


async def _events(view: View, query: QueueLog) -> EventList:
    """The newest events of a queue, up to 500."""
    found = await queues.recent(view, query.tenant, query.queue, limit=query.limit)
    return EventList(events=found)


async def _jobs(view: View, query: JobListing) -> jobs.JobList:
    """A page of the jobs that match, up to 200."""
    wanted = JobQuery(**{name: getattr(query, name) for name in JobQuery.__struct_fields__})
    return await jobs.jobs(view, wanted, cursor=query.cursor, limit=query.limit)


async def _preview(view: View, query: JobQuery) -> jobs.BulkPreview:
    """How many jobs a bulk action would change."""
    return await jobs.preview(view, query)


async def _job(view: View, query: OneJob) -> job.JobShown:
    """One job. Values are cut at 4,096 characters."""
    return await job.job(view, query.tenant, query.queue, query.id)


async def _dead(view: View, query: DeadListing) -> dead.DeadLetters:
    """The newest failed jobs, by error."""
    return await dead.dead_letters(view, **asdict(query))


async def _schedules(view: View, query: Scoped) -> schedules.ScheduleList:
    """Up to 500 schedules."""
    return await schedules.schedules(view, **asdict(query))


async def _flows(view: View, query: Scoped) -> flows.FlowList:
    """Flows among the newest jobs."""
    return await flows.flows(view, **asdict(query))


async def _flow(view: View, query: OneJob) -> flows.FlowGraph:
    """A flow as a graph of up to 300 jobs."""
    return await flows.flow(view, query.tenant, query.queue, query.id)


async def _workers(view: View, query: Scoped) -> workers.WorkerList:
    """Up to 500 workers."""
    return await workers.workers(view, **asdict(query))


async def _worker(view: View, query: OneWorker) -> workers.WorkerShown:
    """One worker and its running jobs."""
    return await workers.worker(view, query.name)


async def _tenants(view: View, query: Nothing) -> tenants.TenantList:
    """Tenants and what they use."""
    return await tenants.tenants(view)


READS: tuple[Read, ...] = (
    Read(path="/overview", query=Listing, run=_overview, reply=overview.Overview),
    Read(path="/queues", query=Listing, run=_queues, reply=queues.QueueList),
    Read(path="/queue", query=OneQueue, run=_queue, reply=queues.QueueShown),
    Read(path="/queue/minutes", query=OneQueue, run=_minutes, reply=MinuteList),
    Read(path="/queue/events", query=QueueLog, run=_events, reply=EventList),
    Read(path="/jobs", query=JobListing, run=_jobs, reply=jobs.JobList),
    Read(path="/jobs/preview", query=JobQuery, run=_preview, reply=jobs.BulkPreview),
    Read(path="/job", query=OneJob, run=_job, reply=job.JobShown),
    Read(path="/dead", query=DeadListing, run=_dead, reply=dead.DeadLetters),
    Read(
        path="/schedules",
        query=Scoped,
        run=_schedules,
        reply=schedules.ScheduleList,
    ),
    Read(path="/flows", query=Scoped, run=_flows, reply=flows.FlowList),
    Read(path="/flow", query=OneJob, run=_flow, reply=flows.FlowGraph),
    Read(path="/workers", query=Scoped, run=_workers, reply=workers.WorkerList),
    Read(path="/worker", query=OneWorker, run=_worker, reply=workers.WorkerShown),
    Read(path="/tenants", query=Nothing, run=_tenants, reply=tenants.TenantList),
)
