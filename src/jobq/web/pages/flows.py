"""Flows among the newest jobs."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from jobq.web.data.flows import flows
from jobq.web.pages.query import tenant_and_queue
from jobq.web.render import render, view_of


async def page(request: Request) -> Response:
    """GET /flows?tenant=&queue="""
    view, where = view_of(request), tenant_and_queue(request)
    found = await flows(view, **where)
    return render(request, "flows.html", found=found, now_ms=view.now_ms(), **where)
