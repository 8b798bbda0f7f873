"""The handlers of the pages: `NAME_page(request)`, with one template each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from jobq.core.records.commands import APPLIES
from jobq.core.records.jobs import QueueName
from jobq.core.records.states import SHOWN, State
from jobq.core.values.units import parse_duration
from jobq.errors import InvalidJob
from jobq.operations.bulk import OPERATIONS
from jobq.web.data.actions import ACTIONS
from jobq.web.data.dead import dead_letters
from jobq.web.data.flows import FlowGraph, FlowNode, flow, flows
from jobq.web.data.job import job
from jobq.web.data.jobs import JobList, JobQuery, jobs, preview
from jobq.web.data.overview import overview, queue_names, search
from jobq.web.data.queues import queue
from jobq.web.data.schedules import schedules
from jobq.web.data.tenants import tenants
from jobq.web.data.view import View
from jobq.web.data.workers import worker, workers
from jobq.web.pages.drawing import draw
from jobq.web.render import render, url, view_of


def given(request: Request, name: str) -> str | None:
    """A value of the query. None if it is missing or empty."""
    return request.query_params.get(name) or None


def tenant_and_queue(request: Request) -> dict[str, Any]:
    """The tenant and the queue, as arguments of functions of `jobq.web.data`."""
    return {"tenant": given(request, "tenant"), "queue": given(request, "queue")}


# The first page: all queues, the last hour, and the newest failures.

_MINUTES = 5
"""Minutes that a rate is averaged over: one minute alone jumps, an hour hides what happens now."""


async def overview_page(request: Request) -> Response:
    """The overview of one tenant, or of all that the caller may see."""
    tenant = request.query_params.get("tenant") or None
    after = request.query_params.get("after") or None
    seen = await overview(view_of(request), tenant=tenant, after=after)
    return render(
        request,
        "overview.html",
        seen=seen,
        tenant=tenant,
        done_rate=_rate(seen.completed_per_minute, seen.now_ms),
        bad_rate=_rate(seen.failed_per_minute, seen.now_ms),
    )


def _rate(minutes: Sequence[int], now_ms: int) -> float:
    """Jobs per minute over the last minutes. The current minute counts as long as it is old."""
    latest = minutes[-_MINUTES:]
    if not latest:
        return 0.0
    return sum(latest) / (len(latest) - 1 + max(1, now_ms % 60_000) / 60_000)


# The page of a queue: counts, charts, limits, holds and the newest events.


async def queue_page(request: Request) -> Response:
    """One queue."""
    tenant = request.query_params.get("tenant", "")
    name = request.query_params.get("queue", "")
    seen = await queue(view_of(request), tenant, name)
    return render(request, "queue.html", seen=seen, states=[state.value for state in SHOWN])


# Jobs by filter, page by page, and bulk actions on all that match.

_TIMES = ("created_after", "created_before", "ended_after", "ended_before")
_TEXTS = ("state", "name", "key", "id", "error")


class Filters(msgspec.Struct, frozen=True, kw_only=True):
    """The filters as the reader wrote them, so that the form shows them again."""

    texts: dict[str, str]
    oldest_first: bool = False

    @property
    def query(self) -> dict[str, str | bool]:
        """The part of an address that has these filters."""
        return {**self.texts, "oldest_first": self.oldest_first}

    @property
    def more(self) -> bool:
        """Whether a filter is set that the form hides at first."""
        return any(self.texts.get(name) for name in (*_TIMES, "error"))

    @property
    def narrowed(self) -> bool:
        """Whether a filter besides the state is set."""
        return any(value for name, value in self.texts.items() if name != "state")


async def jobs_page(request: Request) -> Response:
    """A page of jobs; with part=bulk, the preview of a bulk action."""
    view, given = view_of(request), request.query_params
    names = await queue_names(view)
    tenant, queue = given.get("tenant") or "", given.get("queue") or ""
    if not (tenant and queue):
        known = [each for each in names if _meant(each, tenant, queue)]
        tenant, queue = known[0] if known else ("", "")
    filters = _filters(given)
    if given.get("part") == "bulk":
        return await _bulk(request, view, tenant, queue, filters)
    found, problem = JobList(jobs=(), cursor=None, looked_at=0, counts={}), None
    if queue:
        try:
            query = _query(tenant, queue, filters, view.now_ms())
            found = await jobs(view, query, cursor=given.get("cursor") or None)
        except InvalidJob as error:
            problem = str(error)
            found = await jobs(view, JobQuery(tenant=tenant, queue=queue), limit=1)
            found = msgspec.structs.replace(found, jobs=(), cursor=None)
    return render(
        request,
        "jobs.html",
        status=400 if problem else 200,
        names=names,
        tenant=tenant,
        queue=queue,
        filters=filters,
        found=found,
        problem=problem,
        cursor=given.get("cursor") or "",
        states=[state.value for state in SHOWN],
        verbs=() if filters.texts["id"] else _verbs(view, filters.texts["state"]),
        now_ms=view.now_ms(),
    )


def _meant(name: QueueName, tenant: str, queue: str) -> bool:
    """Whether an address without a tenant or a queue may mean this queue."""
    return tenant in ("", name.tenant) and queue in ("", name.queue)


async def _bulk(
    request: Request, view: View, tenant: str, queue: str, filters: Filters
) -> Response:
    verb = request.query_params.get("verb", "")
    context: dict[str, Any] = {"verb": verb, "queue": queue, "filters": filters}
    try:
        if verb not in OPERATIONS:
            raise InvalidJob(f"there is no bulk action {verb!r}")
        if filters.texts["id"]:
            raise InvalidJob("a bulk action takes no id: open the job to change it")
        query = _query(tenant, queue, filters, view.now_ms())
        seen = await preview(view, query)
    except InvalidJob as error:
        return render(request, "partials/bulk.html", problem=str(error), **context)
    body = {
        name: value
        for name, value in msgspec.structs.asdict(query).items()
        if value not in (None, "") and name not in ("id", "oldest_first")
    }
    return render(
        request,
        "partials/bulk.html",
        problem=None,
        seen=seen,
        body=msgspec.json.encode(body).decode(),
        now_ms=view.now_ms(),
        **context,
    )


def _filters(given: QueryParams) -> Filters:
    return Filters(
        texts={name: given.get(name, "").strip() for name in (*_TEXTS, *_TIMES)},
        oldest_first=given.get("oldest_first") in ("true", "on"),
    )


def _query(tenant: str, queue: str, filters: Filters, now_ms: int) -> JobQuery:
    given: dict[str, Any] = {name: filters.texts[name] or None for name in _TEXTS}
    for name in _TIMES:
        if filters.texts[name]:
            given[f"{name}_ms"] = _time(name, filters.texts[name], now_ms)
    return JobQuery(tenant=tenant, queue=queue, oldest_first=filters.oldest_first, **given)


def _time(name: str, value: str, now_ms: int) -> int:
    """A time in UTC, or an age such as 2h: how long ago it was."""
    try:
        return now_ms - round(parse_duration(value) * 1000)
    except ValueError:
        pass
    try:
        found = datetime.fromisoformat(value)
    except ValueError:
        raise InvalidJob(
            f"{name.replace('_', ' ')} {value!r} is neither a time such as 2030-01-31T08:00 "
            "(UTC) nor an age such as 2h"
        ) from None
    return round((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1000)


def _verbs(view: View, state: str) -> tuple[str, ...]:
    """The bulk actions that the caller may do and that apply to all of the chosen states."""
    chosen = [each for each in state.split(",") if each in set(State)]
    return tuple(
        verb
        for verb in OPERATIONS
        if ACTIONS[f"jobs.{verb}"].allowed(view)
        and chosen
        and all(each in APPLIES[verb].states for each in chosen)
    )


# The page of a job: its values, attempts, log lines and what happened to it.


async def job_page(request: Request) -> Response:
    """One job."""
    given = request.query_params
    view = view_of(request)
    seen = await job(view, given.get("tenant", ""), given.get("queue", ""), given.get("id", ""))
    return render(request, "job.html", seen=seen)


# The search box: a job by its id, or queues by a part of their name.

_MAX_TEXT = 256
"""Characters of a search: an id has no more."""


async def search_page(request: Request) -> Response:
    """What was found. A single hit is opened at once."""
    text = request.query_params.get("q", "")[:_MAX_TEXT]
    view = view_of(request)
    found = await search(view, text, tenant=request.query_params.get("tenant") or None)
    if len(found.jobs) == 1 and not found.queues:
        job = found.jobs[0]
        address = url(request, "job", tenant=job.tenant, queue=job.queue, id=job.id)
        return RedirectResponse(address, status_code=303)
    if len(found.queues) == 1 and not found.jobs:
        queue = found.queues[0]
        address = url(request, "queue", tenant=queue.tenant, queue=queue.queue)
        return RedirectResponse(address, status_code=303)
    return render(request, "search.html", text=text, found=found, now_ms=view.now_ms())


async def dead_page(request: Request) -> Response:
    """Dead letters: failed jobs by cause, to rerun or purge them.

    GET /dead?tenant=&queue=&name=
    """
    view, where, name = view_of(request), tenant_and_queue(request), given(request, "name")
    found = await dead_letters(view, **where, name=name)
    return render(request, "dead.html", dead=found, now_ms=view.now_ms(), name=name or "", **where)


async def schedules_page(request: Request) -> Response:
    """Schedules: their next times; run now, pause, resume and remove.

    GET /schedules?tenant=&queue=
    """
    view, where = view_of(request), tenant_and_queue(request)
    found = await schedules(view, **where)
    return render(request, "schedules.html", found=found, now_ms=view.now_ms(), **where)


async def flow_page(request: Request) -> Response:
    """One flow as a drawn graph and as a list.

    GET /flow?tenant=&queue=&id=
    """
    asked = {name: request.query_params.get(name, "") for name in ("tenant", "queue", "id")}
    graph = await flow(view_of(request), **asked)
    waits = Counter(edge.waiter for edge in graph.edges)
    return render(
        request,
        "flow.html",
        flow=graph,
        drawing=draw(graph),
        waits=[waits[n] + node.hidden for n, node in enumerate(graph.nodes)],
        last=_last(graph),
        tenant=asked["tenant"],
        queue=asked["queue"],
    )


def _last(graph: FlowGraph) -> FlowNode | None:
    """The job that waits for all others. None if there are several, or if it is gone."""
    waited_for = {edge.waited_for for edge in graph.edges}
    tops = [node for n, node in enumerate(graph.nodes) if n not in waited_for]
    return tops[0] if len(tops) == 1 and tops[0].state != "gone" else None


async def flows_page(request: Request) -> Response:
    """Flows among the newest jobs.

    GET /flows?tenant=&queue=
    """
    view, where = view_of(request), tenant_and_queue(request)
    found = await flows(view, **where)
    return render(request, "flows.html", found=found, now_ms=view.now_ms(), **where)


async def workers_page(request: Request) -> Response:
    """Workers that are alive: what they are doing; drain, resume and stop.

    GET /workers?tenant=&queue=
    """
    where = tenant_and_queue(request)
    found = await workers(view_of(request), **where)
    return render(request, "workers.html", found=found, **where)


async def worker_page(request: Request) -> Response:
    """One worker and the jobs that it runs.

    GET /worker?name=
    """
    found = await worker(view_of(request), request.query_params.get("name", ""))
    return render(request, "worker.html", found=found)


async def tenants_page(request: Request) -> Response:
    """Tenants and what they use.

    GET /tenants
    """
    return render(request, "tenants.html", found=await tenants(view_of(request)))
