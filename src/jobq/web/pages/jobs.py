"""Jobs by filter, page by page, and bulk actions on all that match."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from jobq.core.commands import APPLIES
from jobq.core.durations import parse_duration
from jobq.core.records import QueueName
from jobq.core.states import SHOWN, State
from jobq.errors import InvalidJob
from jobq.operations.bulk import OPERATIONS
from jobq.web.data.actions import ACTIONS
from jobq.web.data.jobs import JobList, JobQuery, jobs, preview
from jobq.web.data.search import queue_names
from jobq.web.data.view import View
from jobq.web.render import render, view_of

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


async def page(request: Request) -> Response:
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
