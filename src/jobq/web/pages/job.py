"""The page of a job: its values, attempts, log lines and what happened to it."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from jobq.web.data.job import job
from jobq.web.render import render, view_of


async def page(request: Request) -> Response:
    """One job."""
    given = request.query_params
    view = view_of(request)
    seen = await job(view, given.get("tenant", ""), given.get("queue", ""), given.get("id", ""))
    return render(request, "job.html", seen=seen)
