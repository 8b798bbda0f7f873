"""One worker and the jobs that it runs."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from jobq.web.data.workers import worker
from jobq.web.render import render, view_of


async def page(request: Request) -> Response:
    """GET /worker?name="""
    found = await worker(view_of(request), request.query_params.get("name", ""))
    return render(request, "worker.html", found=found)
