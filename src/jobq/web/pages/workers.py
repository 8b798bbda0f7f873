"""Workers that are alive: what they are doing; drain, resume and stop."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from jobq.web.data.workers import workers
from jobq.web.pages.query import tenant_and_queue
from jobq.web.render import render, view_of


async def page(request: Request) -> Response:
    """GET /workers?tenant=&queue="""
    where = tenant_and_queue(request)
    found = await workers(view_of(request), **where)
    return render(request, "workers.html", found=found, **where)
